// Judges histories of the trial by Porcupine, a checker of linearizability that this project did not write.
//
//	go run . FOLDER...
//
// A history is linearizable if each operation can be given an instant between its call and its return, so that all
// of them together, in the order of these instants, do what the model below says. Each key is judged by itself. Only
// what clients called, were answered and believed counts; what the store did is not looked at.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

const second = int64(time.Second)

// Longest search for an order, for all keys of a history.
const patience = 2 * time.Minute

// op is an operation on one key.
type op struct {
	kind        string // acquire, held, renew, write, release, force or read
	token       string // of the acquisition
	shared      bool   // whether that is a reader's
	fence       int64
	read, value string // what a write replaces, and what it writes; what a read finds
	call        int64
	until       int64 // of force: the end of the longest lease that it may have broken
	unknown     bool  // it may have been applied or not
}

func (o op) String() string {
	name := o.kind + " " + o.token[max(0, len(o.token)-8):] // a token begins with the time, which is much the same
	if o.fence != 0 {
		name += fmt.Sprintf(", fencing token %d", o.fence)
	}
	if o.value != "" {
		name += fmt.Sprintf(", %s -> %s", o.read, o.value)
	}
	if o.unknown {
		name += " (unknown)"
	}
	return name
}

// broken is a claim that force has ended. Its holders may not know that before their leases are over.
type broken struct {
	holders string
	until   int64
}

// state is a lock and the row that it guards.
type state struct {
	holders string // token of the latest acquisition, or of the readers that share it, each with a blank; without those released
	shared  bool   // whether readers share it
	fence   int64  // highest fencing token
	last   string // value in the row
	forced [4]broken
}

func (s state) broke(token string, at int64) bool {
	for _, each := range s.forced {
		if strings.Contains(each.holders, token+" ") && at <= each.until {
			return true
		}
	}
	return false
}

// step returns the states that an operation may lead to; none if it cannot have happened in this state.
func step(s state, o op) []state {
	mine := strings.Contains(s.holders, o.token+" ")
	after := s
	legal := true
	switch o.kind {
	case "acquire":
		// Whoever held the lock may have lost it: its lease is over. If that was not so, it still believes, and its
		// next "held" or write comes after this and finds another holder. An acquire of unknown outcome changes
		// nothing that the next one would need, so none is in the history. A reader that joins has the fencing token
		// of the readers whom it joins, and nobody has held the lock alone in between.
		joins := o.shared && s.shared && o.fence == s.fence
		legal = o.fence > s.fence || joins
		after.holders, after.shared, after.fence = o.token+" ", o.shared, o.fence
		if joins {
			after.holders += s.holders
		}
	case "held":
		legal = mine || s.broke(o.token, o.call)
	case "renew":
		legal = mine
	case "release":
		legal = mine || s.broke(o.token, math.MinInt64)
		after.holders = strings.Replace(s.holders, o.token+" ", "", 1)
	case "write":
		// The guard: only while the lock is held, and only over what its writer has read.
		legal = mine && s.last == o.read
		after.last = o.value
	case "force":
		copy(after.forced[1:], s.forced[:])
		after.forced[0] = broken{s.holders, o.until}
		after.holders, after.shared = "", false
	case "read":
		legal = s.last == o.value
	}
	if o.unknown && legal {
		return []state{s, after}
	}
	if o.unknown {
		return []state{s}
	}
	if legal {
		return []state{after}
	}
	return nil
}

var model = (&porcupine.NondeterministicModel{
	Init: func() []interface{} { return []interface{}{state{last: "start/0"}} },
	Step: func(s, input, _ interface{}) []interface{} {
		var found []interface{}
		for _, each := range step(s.(state), input.(op)) {
			found = append(found, each)
		}
		return found
	},
	DescribeOperation: func(input, _ interface{}) string { return input.(op).String() },
}).ToModel()

// event is a line of a history: see dev/chaos/history.py.
type event struct {
	T       int64
	Since   int64
	Proc    string
	Op      string
	Phase   string
	Key     string
	Unknown bool
	Lease   float64
	Locks   map[string]struct {
		Token  string
		Shared bool
		Fence  int64
	}
	Read   map[string]string
	Values map[string]string
}

func events(folder string) ([]event, error) {
	paths, err := filepath.Glob(filepath.Join(folder, "*.jsonl"))
	var found []event
	for _, path := range paths {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		lines := bufio.NewScanner(file)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var one event
			// the last line of a process that was killed while it wrote is cut short
			if json.Unmarshal(lines.Bytes(), &one) == nil {
				found = append(found, one)
			}
		}
		if err := lines.Err(); err != nil {
			return nil, err
		}
	}
	sort.SliceStable(found, func(a, b int) bool { return found[a].T < found[b].T })
	return found, err
}

// operations returns the operations on each key of a history.
func operations(all []event) map[string][]porcupine.Operation {
	keys := map[string][]porcupine.Operation{}
	procs := map[string]int{}
	called := map[string]event{} // by process and operation
	var lease int64
	add := func(e event, key string, o op, call, until int64) {
		if _, known := procs[e.Proc]; !known {
			procs[e.Proc] = len(procs)
		}
		o.call = call
		keys[key] = append(keys[key], porcupine.Operation{
			ClientId: procs[e.Proc], Input: o, Call: call, Return: until,
		})
	}
	write := func(e event, unknown bool, until int64) {
		for key, value := range e.Values {
			o := op{kind: "write", token: e.Locks[key].Token, read: e.Read[key], value: value, unknown: unknown}
			add(e, key, o, e.T, until)
		}
	}
	for _, e := range all {
		call, known := called[e.Proc+" "+e.Op]
		if e.Phase == "invoke" {
			called[e.Proc+" "+e.Op] = e
			continue
		}
		delete(called, e.Proc+" "+e.Op)
		switch {
		case e.Op == "init":
			lease = int64(e.Lease * float64(second))
		case e.Op == "force":
			add(e, e.Key, op{kind: "force", until: e.T + lease, unknown: e.Unknown}, e.Since, e.T)
		case e.Op == "final":
			for key, value := range e.Values {
				add(e, key, op{kind: "read", value: value}, e.T, e.T)
			}
		case e.Op == "write" && e.Phase == "ok":
			write(call, false, e.T)
		case e.Op == "write" && e.Phase == "info" && known:
			write(call, true, math.MaxInt64)
		case e.Op == "held" || e.Phase == "ok" && (e.Op == "acquire" || e.Op == "renew" || e.Op == "release"):
			since := call.T
			if e.Op == "held" {
				since = e.Since
			}
			for key, lock := range e.Locks {
				o := op{kind: e.Op, token: lock.Token, shared: lock.Shared}
				if e.Op == "acquire" {
					o.fence = lock.Fence
				}
				add(e, key, o, since, e.T)
			}
		}
	}
	for _, e := range called { // of those that were killed
		if e.Op == "write" {
			write(e, true, math.MaxInt64)
		}
	}
	for key := range keys {
		keys[key] = bounded(keys[key])
	}
	return keys
}

// bounded ends each write of unknown outcome where a later acquire has returned, after which its guard refuses it.
// That excludes no order, and without it the search would have to try them at every later place.
func bounded(ops []porcupine.Operation) []porcupine.Operation {
	fences := map[string]int64{}
	for _, each := range ops {
		if o := each.Input.(op); o.kind == "acquire" {
			fences[o.token] = o.fence
		}
	}
	var kept []porcupine.Operation
	for _, each := range ops {
		if o := each.Input.(op); o.unknown && o.kind == "write" {
			for _, other := range ops {
				if other.Input.(op).fence > fences[o.token] && other.Return < each.Return {
					each.Return = other.Return
				}
			}
			if each.Return < each.Call {
				continue
			}
		}
		kept = append(kept, each)
	}
	return kept
}

// judge prints the verdict on the history in a folder, and returns whether it is linearizable.
func judge(folder string) bool {
	all, err := events(folder)
	if err != nil || len(all) == 0 {
		fmt.Println(folder, "has no history", err)
		return false
	}
	passes := true
	count := 0
	for key, ops := range operations(all) {
		count += len(ops)
		result, info := porcupine.CheckOperationsVerbose(model, ops, patience)
		if result == porcupine.Ok {
			continue
		}
		passes = false
		page := filepath.Join(folder, strings.ReplaceAll(key, "#", "-")+".html")
		fmt.Printf("%s: %s: %s of %d operations: %s\n", folder, key, result, len(ops), page)
		if result == porcupine.Illegal {
			fmt.Println("  ", stuck(ops, info))
		}
		if err := porcupine.VisualizePath(model, info, page); err != nil {
			fmt.Println(err)
		}
	}
	if passes {
		fmt.Printf("%s: all keys are linearizable, %d operations\n", folder, count)
	}
	return passes
}

// stuck describes where the search for an order ended: the last operations in the longest order that was found, and
// the first one to return that is not in it.
func stuck(ops []porcupine.Operation, info porcupine.LinearizationInfo) string {
	var longest []porcupine.Operation
	for _, each := range info.PartialLinearizationsOperations()[0] {
		if len(each) > len(longest) {
			longest = each
		}
	}
	placed := map[string]bool{}
	for _, each := range longest {
		placed[fmt.Sprint(each.Input, each.Call)] = true
	}
	var next *porcupine.Operation
	for place, each := range ops {
		if !placed[fmt.Sprint(each.Input, each.Call)] && (next == nil || each.Return < next.Return) {
			next = &ops[place]
		}
	}
	text := "no order is possible after"
	for _, each := range longest[max(0, len(longest)-3):] {
		text += fmt.Sprintf(" [%v]", each.Input)
	}
	return fmt.Sprintf("%s with [%v], called at %.3f", text, next.Input, float64(next.Call)/float64(second))
}

func main() {
	passes := len(os.Args) > 1
	for _, folder := range os.Args[1:] {
		passes = judge(folder) && passes
	}
	if !passes {
		os.Exit(1)
	}
}
