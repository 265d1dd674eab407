/* The claim protocol with time: who may believe, who may take over, and when.

   A tick is a unit of true time, which is DynamoDB's.  A client's local clock is true time less the ticks that it
   missed (FREEZE: client 0 may stand still, clock and all, and thaw).  Wall clocks do not occur, so they may say
   what they like.  DynamoDB's time is seen only as the Date of an answer: in whole units of U ticks, stamped when
   the request is applied.  A request has three steps (sent, applied, answer received); ticks fall anywhere between.

   All times here are whole ticks.  So "server time is within [Date, Date + U)" is Date .. Date + U - 1, and what is
   "<" between instants is "<=" here.  Margins below a tick are left out (drift, 1 ms, the 0.3 s in HEADROOM).

   spin -a [-DNAME=VALUE ...] time.pml && gcc -O2 -DSAFETY -DCOLLAPSE -o pan pan.c && ./pan -m100000
   Without -D: the design.  A rule that is switched off is a variant; runs.csv has the table of them.

   Properties: MUST(number, condition)
     10 I1  two clients never believe at once, but for one whose clock missed ticks, until the answer to a request
            that it sent afterwards
     11 I1  even that one believes no longer than it missed: two never do if the missed ticks are added to its clock
     40 I4  an end never moves back under one acquisition
     70 I7  a dead holder's claim is refused to nobody from BOUND ticks after its last request was sent (DEATH) */

/* ---- sizes ---- */
#ifndef N
#define N 2
#endif
#ifndef ACQS
#define ACQS 1        /* acquisitions of each client, tries of unknown outcome included */
#endif
#ifndef RENEWS
#define RENEWS 1      /* renewals in each */
#endif
#ifndef TMAX
#define TMAX 7        /* nothing is sent from then on */
#endif
#ifndef DELAY
#define DELAY 2       /* ticks from sending to receiving, at most, of a request that is answered, frozen clients aside */
#endif
#ifndef ROLES
#define ROLES 1       /* 1: client 0 is the first to ask for the lock */
#endif
#ifndef U
#define U 2
#endif
#ifndef LEASE
#define LEASE 2
#endif
#ifndef FREEZE
#define FREEZE 0      /* ticks that client 0's clock may miss */
#endif
#ifndef PINGS
#define PINGS 0       /* requests of client 0 about other rows; if it freezes, after the thaw */
#endif
#ifndef SKEW
#define SKEW 0        /* DynamoDB's hosts disagree: a Date may be so many ticks ahead */
#endif
#ifndef FAULTS
#define FAULTS 0      /* requests that are lost, or delayed to land at any time, or whose answer is lost */
#endif
#ifndef BLIND
#define BLIND 0       /* clients that never see a Date: 1 client 0, 2 client 1, 3 both */
#endif
#ifndef DEATH
#define DEATH 0       /* 1: a holder may die, and no tick falls within a request */
#endif

/* ---- rules; the default is the design ---- */
#ifndef HEAD
#define HEAD (U-1)    /* HEADROOM: a new end lies so far beyond the lower bound, at least */
#endif
#ifndef GRACE
#define GRACE (U-1+HEAD)      /* WATCH_GRACE: and so far, at most */
#endif
#ifndef WGRACE
#define WGRACE GRACE  /* what a watcher waits beyond the lease */
#endif
#ifndef MARGIN
#define MARGIN SKEW   /* HOST_SKEW, of who takes over past an end */
#endif
#ifndef TAKE
#define TAKE 1        /* take over past an end by the 1 lower, 2 upper bound; 0 never */
#endif
#ifndef WATCH
#define WATCH 1       /* watch an unchanged claim 1 from when it was received, 2 from before it was asked for; 0 never */
#endif
#ifndef WATCH_END
#define WATCH_END 1   /* unchanged: token and end; 0: the token alone */
#endif
#ifndef FROM
#define FROM 1        /* the lease counts from before the 1 first, 2 last send; 3 from the answer */
#endif
#ifndef REACH
#define REACH 1       /* a holder also stops when server time may have reached the end */
#endif
#ifndef CAP
#define CAP 1         /* and when a watcher may take it, should its end be further off */
#endif
#ifndef UPPER
#define UPPER 1       /* upper bound: of the answer whose request was 1 sent last, 2 received last; 3 the lowest of all */
#endif
#ifndef LOWER
#define LOWER 1       /* lower bound: 1 the best of all, dropped if contradicted; 2 the same, never dropped */
#endif
#ifndef LATER
#define LATER 1       /* a renewal 1 only moves the end later, 2 may leave it equal, 0 may move it back */
#endif
#ifndef BUMP
#define BUMP 1        /* a new end is later than all proposed, 1 by asking for a tick more, 2 by waiting; 0 it need not be */
#endif
#ifndef APPLIED
#define APPLIED 1     /* only a renewal that was applied extends the lease; 0: also one refused for a later end */
#endif
#ifndef MINE
#define MINE 2        /* renewal and release: 2 token and version are mine, 1 the token */
#endif
#ifndef ACQ_NEW
#define ACQ_NEW 1     /* acquire: token absent or not :mine */
#endif
#ifndef BOUND
#define BOUND (LEASE+HEAD+(U-1)+SKEW+MARGIN)
#endif

#define ACQ 1
#define REN 2
#define REL 3
#define PEEK 4
#define FAR 100       /* an end beyond all time, of holders that never saw a Date */
#define MUST(number,c) assert((c) || number==0)
#define STEP(name)    /* what a step is called: nothing to Spin */
#define L(i) (T-miss[i])
#define AWAKE(i) (i!=0 || frozen!=1)
#define SEES(i) (!((BLIND>>i)&1))
#define DATE(x) (((x)/U)*U)
#define BELIEVES(i,at) (has[i] && (at)<fin[i] && (!REACH || !known[i] || (at)+hi[i]<lim[i]))
#define SOUND(i) (m0[i]==miss[i] && BELIEVES(i,L(i)))
#define REPAIRED(i) BELIEVES(i,T-m0[i])

typedef Req { byte k; byte t; byte v; short x; short low; byte wt; byte wx };  /* kind, token, version, new end, now_low, watched */
byte T=1;
byte tok, ver, exp;                          /* the row; 0 = absent */
byte faults=FAULTS, frozen, busy;
byte miss[N];                                /* ticks missed ... */
byte m0[N];                                  /* ... when that request was sent which was sent last of those answered */
bool known[N]; short lo[N], hi[N], hat[N];   /* bounds of server time less local time; when the upper one's request was sent */
bool has[N]; short fin[N], lim[N];           /* belief: by lease, and by server time */
byte at[N];                                  /* when a request under way was sent; 0 if none is */
bool asked;                                  /* client 0 has asked for the lock */
byte dead, lastsend, lsnd[N];                /* token of a dead holder, when its last request was sent */
Req late;

#if N==2
#define TWO(b) (b(0) && b(1))
#else
#define TWO(b) ((b(0) && b(1)) || (b(0) && b(2)) || (b(1) && b(2)))
#endif
inline check() { MUST(10, !TWO(SOUND)); MUST(11, !TWO(REPAIRED)) }

inline apply(m) {
  ok=0;
  if
  :: m.k==ACQ ->
     if
     :: (exp==0 || exp<=m.low || (m.wt!=0 && tok==m.wt && (exp==m.wx || !WATCH_END))) && (tok!=m.t || !ACQ_NEW) ->
        tok=m.t; ver++; exp=m.x; ok=1
     :: else -> MUST(70, m.t==tok || dead==0 || tok!=dead || T<lastsend+BOUND)
     fi
  :: m.k==REN ->
     if
     :: tok==m.t && (ver==m.v || MINE<2) && exp!=0 && (exp<m.x || (LATER==2 && exp==m.x) || LATER==0) ->
        MUST(40, m.x>=exp); exp=m.x; ok=1
     :: else
     fi
  :: m.k==REL -> if :: tok==m.t && (ver==m.v || MINE<2) -> exp=0; ok=1 :: else fi
  :: m.k==PEEK -> ok=1
  fi;
  printf("  T=%d lands: kind %d token %d version %d end %d low %d -> %d; row: %d %d %d\n", T, m.k, m.t, m.v, m.x, m.low, ok, tok, ver, exp)
}
inline copy(c,d) { c.k=d.k; c.t=d.t; c.v=d.v; c.x=d.x; c.low=d.low; c.wt=d.wt; c.wx=d.wx }
inline clear(c) { c.k=0; c.t=0; c.v=0; c.x=0; c.low=0; c.wt=0; c.wx=0 }
inline stamp() { if :: a_date=DATE(T) :: SKEW>0 -> a_date=DATE(T+SKEW) fi }

/* what client i learns of server time from an answer: its Date, local times of sending and receiving, ticks missed at sending */
inline observe(snt,rcv,missed) {
  if
  :: SEES(i) -> nl=a_date-rcv; nh=a_date+U-1-snt;
     if
     :: !known[i] -> known[i]=1; lo[i]=nl; hi[i]=nh; if :: PINGS -> hat[i]=snt :: else fi
     :: else ->
        if :: nl>lo[i] || (LOWER==1 && lo[i]>nh) -> lo[i]=nl :: else fi;
        if :: (UPPER==1 && (!PINGS || snt>=hat[i])) || UPPER==2 || (UPPER==3 && (nh<hi[i] || nl>hi[i])) -> hi[i]=nh :: else fi;
        if :: PINGS && snt>hat[i] -> hat[i]=snt :: else fi
     fi;
     nl=0; nh=0
  :: else
  fi;
  if :: missed>m0[i] -> m0[i]=missed :: else fi
}
inline send() { s2=L(i); ms=miss[i]; at[i]=T; if :: DEATH -> busy++; lsnd[i]=T :: else fi }
inline propose() {
  if
  :: !known[i] -> q.x=FAR
  :: known[i] && hi[i]<=lo[i]+HEAD -> q.x=s2+LEASE+lo[i]+HEAD
  :: known[i] && hi[i]>lo[i]+HEAD && hi[i]<=lo[i]+GRACE -> q.x=s2+LEASE+hi[i]
  :: known[i] && hi[i]>lo[i]+HEAD && hi[i]>lo[i]+GRACE -> q.x=s2+LEASE+lo[i]+GRACE
  fi;
  if :: BUMP==1 && q.x<=prop -> q.x=prop+1 :: else fi
}
/* `end` stands in the row for us: believe, by the lease from `base` */
inline believe(end) {
  if :: base+LEASE>fin[i] -> fin[i]=base+LEASE :: else fi;
  if
  :: end>kexp -> kexp=end; lim[i]=end;
     if :: CAP && known[i] && s+lo[i]+LEASE+WGRACE<end -> lim[i]=s+lo[i]+LEASE+WGRACE :: else fi
  :: else
  fi
}
inline see() {
  if
  :: a_exp==0 -> seen=0; until=0; w0=0
  :: a_exp!=0 && (a_tok!=seen || a_exp!=until) -> seen=a_tok; until=a_exp; w0=(WATCH==2 -> s2 : L(i))
  :: else
  fi
}

proctype Client(byte i) {
  byte n, rn, t, v, tries, a_tok, a_ver, a_exp, a_date, seen, until, kexp, prop, ms;
  short s, s2, w0, base, nl, nh; bool ok, got, looked, holds; Req q;
idle:
  if
  :: atomic { STEP(look) !looked && T<TMAX && AWAKE(i) && (i==0 || asked || !ROLES) -> send(); s=s2; q.k=PEEK }       /* first contact */
  :: atomic { STEP(acquire) looked && !holds && n<ACQS && T<TMAX && AWAKE(i) ->              /* take; a refusal shows the row, so it is a poll as well */
       t=i*ACQS+n+1; q.k=ACQ; if :: ROLES && i==0 -> asked=1 :: else fi; q.t=t; prop=0;
again: send(); if :: tries==0 -> s=s2 :: else fi;
       propose(); prop=q.x;
       if :: TAKE && known[i] -> q.low=s2-MARGIN+lo[i]; if :: TAKE==2 -> q.low=s2+hi[i] :: else fi :: else -> q.low=0 fi;
       if :: WATCH && seen!=0 && s2-w0>=LEASE+WGRACE -> q.wt=seen; q.wx=until :: else -> q.wt=0; q.wx=0 fi }
  :: atomic { STEP(renew) holds && has[i] && rn<RENEWS && T<TMAX && AWAKE(i) ->
       send(); s=s2; q.k=REN; q.t=t; q.v=v; propose();
       if :: BUMP==2 && q.x<=prop -> at[i]=0; if :: DEATH -> busy-- :: else fi; s=0; s2=0; ms=0; clear(q); goto idle :: else fi;
       prop=q.x; rn++ }
  :: atomic { STEP(release) holds && AWAKE(i) -> send(); s=s2; has[i]=0; fin[i]=0; lim[i]=0; q.k=REL; q.t=t; q.v=v }
  :: atomic { STEP(crash) DEATH && dead==0 && holds -> dead=t; lastsend=lsnd[i]; has[i]=0; fin[i]=0; lim[i]=0; goto over }
  :: atomic { (T>=TMAX || (!holds && n>=ACQS)) -> goto over }
  fi;

  atomic {                                                                    /* applied, or not */
    if
    :: STEP(lands) apply(q); a_tok=tok; a_ver=ver; a_exp=exp; stamp(); got=1
    :: STEP(answer_lost) faults>0 -> faults--; apply(q)
    :: STEP(request_lost) faults>0 -> faults--
    :: STEP(delayed) faults>0 && late.k==0 && q.k!=PEEK -> faults--; copy(late,q)
    fi };

  atomic { STEP(answer_arrives) AWAKE(i) -> at[i]=0; if :: DEATH -> busy-- :: else fi;        /* or is missed */
    if :: got -> observe(s2,L(i),ms) :: else fi;
    if
    :: q.k==PEEK -> if :: got -> looked=1; see() :: else fi
    :: q.k==ACQ ->
       if
       :: got && (ok || (a_tok==t && a_exp!=0)) ->
          n++; v=a_ver; holds=1; has[i]=1; fin[i]=0; kexp=0; rn=0; seen=0; until=0; w0=0;
          base=(FROM==1 -> s : (FROM==2 -> s2 : L(i))); believe(a_exp)
       :: got && !ok && !(a_tok==t && a_exp!=0) -> see(); if :: tries!=0 -> n++ :: else fi
       :: !got && tries==0 -> tries=1; ok=0; goto again
       :: else -> n++                                                         /* unknown: never held */
       fi
    :: q.k==REN ->
       if
       :: got && ok -> base=(FROM==3 -> L(i) : s); believe(q.x)
       :: got && !ok && (a_tok!=t || (a_ver!=v && MINE==2) || a_exp==0) -> has[i]=0; fin[i]=0; lim[i]=0
       :: got && !ok && !(a_tok!=t || (a_ver!=v && MINE==2) || a_exp==0) -> if :: !APPLIED -> base=s; believe(a_exp) :: else fi
       :: else
       fi
    :: q.k==REL -> holds=0; v=0; kexp=0; prop=0
    fi;
    check();
    tries=0; s=0; s2=0; base=0; ms=0; ok=0; got=0; a_tok=0; a_ver=0; a_exp=0; a_date=0; clear(q);
    goto idle };
over:
  atomic { clear(q); seen=0; until=0; w0=0; kexp=0; prop=0; if :: !has[i] -> known[i]=0; lo[i]=0; hi[i]=0; hat[i]=0; m0[i]=0 :: else fi }
}
proctype Other(byte i) { byte n, a_date, ms; short s, nl, nh;                  /* requests about other rows */
end: do
  :: atomic { STEP(ask_elsewhere) n<PINGS && T<TMAX && AWAKE(i) && has[i] && (!FREEZE || frozen==2) -> n++; s=L(i); ms=miss[i] };
     atomic { stamp() };
     atomic { AWAKE(i) -> observe(s,L(i),ms); check(); s=0; ms=0; a_date=0 }
  od
}
proctype Network() { bool ok;
end: do :: atomic { STEP(lands_late) late.k!=0 -> apply(late); clear(late); ok=0 } od
}
#define IN_TIME(i) (at[i]==0 || T-at[i]<DELAY || miss[i]!=0 || !AWAKE(i))
proctype Clock() {
end: do
  :: atomic { STEP(time_passes) T<TMAX+DELAY && busy==0 && IN_TIME(0) && IN_TIME(1) && (frozen!=1 || miss[0]<FREEZE) -> T++; if :: frozen==1 -> miss[0]++ :: else fi }
  :: atomic { STEP(clock_stands_still) FREEZE>0 && frozen==0 && (has[0] || at[0]!=0) && T<TMAX -> frozen=1 }
  :: atomic { STEP(clock_goes_on) frozen==1 && miss[0]>0 -> frozen=2 }
  od
}
init { byte j; atomic { run Clock(); if :: FAULTS>0 -> run Network() :: else fi; if :: PINGS>0 -> run Other(0) :: else fi;
  do :: j<N -> run Client(j); j++ :: else -> break od; j=0 } }
