/* The claim protocol without time, on one row that carries the claim and the guarded data.

   A claim may be found expired by another token at ANY moment, so that every clock, pause and suspension is
   covered.  Faults (FAULTS of them, anywhere): a request is lost, its answer is lost, or it is delayed and lands
   at any later time; in all three cases the sender knows nothing and sends it once more.  A renewal, force or
   save without the lock may also land twice; with TWICE a guarded write or a release may, as through a proxy that
   repeats it and returns the second answer.  A crash while holding is free.

   spin -a [-DNAME=VALUE ...] claim.pml && gcc -O2 -DSAFETY -DCOLLAPSE -o pan pan.c && ./pan -m100000
   Without -D: the design.  A rule that is switched off is a variant; runs.csv has the table of them.

   Properties: MUST(number, condition)
     20 I2  a guarded write lands under its own standing claim, once, and in the order of its holder's writes
     21 I2  what is reported of a guarded write is true: applied, not applied (now and later), or unknown
     22     "released" is not reported of a lock that was surely lost before
     23     "lost" is reported only of a lock that another has ended, or an own write of unknown outcome that unlocks;
            or of a release that landed twice, if others have changed the row in between so that nothing shows it
     30 I3  each acquisition has a greater fencing token than all before
     40 I4  no renewal moves an end back
     41 I4  no renewal revives a claim that was given back or interrupted
     42 I4  no acquire lands twice with nobody's doing in between
     43 I4  an acquire reported as refused has not made the claim that stands there
     50 I5  nobody touches another's claim; force breaks the one it has seen */

/* ---- sizes ---- */
#ifndef N
#define N 2           /* clients */
#endif
#ifndef ROUNDS
#define ROUNDS 1      /* acquisitions of each */
#endif
#ifndef FAULTS
#define FAULTS 1
#endif
#ifndef WRITES
#define WRITES 1      /* guarded writes in each, beside a last one that may unlock */
#endif
#ifndef RENEWS
#define RENEWS 1      /* renewals in the background in each */
#endif
#ifndef FORCES
#define FORCES 0      /* force releases */
#endif
#ifndef PUTS
#define PUTS 0        /* saves of the row without the lock */
#endif

#ifndef TWICE
#define TWICE 0       /* whether a guarded write or a release may land twice */
#endif

/* ---- rules; the default is the design ---- */
#ifndef TOKEN_FRESH
#define TOKEN_FRESH 1   /* a token for each acquisition; 0: for each client */
#endif
#ifndef ACQ_NEW
#define ACQ_NEW 1       /* acquire: token absent or not :mine */
#endif
#ifndef ACQ_OWN
#define ACQ_OWN 1       /* acquire refused, but the row shows our token and a claim: it was applied */
#endif
#ifndef REN_MINE
#define REN_MINE 2      /* renew: 2 token and version are mine, 1 the token, 0 neither */
#endif
#ifndef REN_LATER
#define REN_LATER 1     /* renew: the end is before the new one; false where there is no end */
#endif
#ifndef REN_OWN
#define REN_OWN 1       /* renew refused, but the claim is ours: not lost */
#endif
#ifndef REL_MINE
#define REL_MINE 1      /* release: token and version are mine; 0: by key */
#endif
#ifndef REL_KEEP
#define REL_KEEP 1      /* release keeps the token */
#endif
#ifndef REL_VERSION
#define REL_VERSION 1   /* release keeps the version; 0: it deletes the row, and the version starts anew */
#endif
#ifndef REL_FIRST
#define REL_FIRST 1     /* release refused at its first attempt: lost */
#endif
#ifndef REL_SHOWN
#define REL_SHOWN 1     /* release refused, and the row shows that a copy of it was applied: released; 0: lost */
#endif
#ifndef REL_FORCED
#define REL_FORCED 1    /* release refused at a repeat, and the row shows that force broke our claim: lost */
#endif
#ifndef WR_MINE
#define WR_MINE 2       /* guarded write: 2 token and version are mine, 1 the token, 0 neither */
#endif
#ifndef WR_EXISTS
#define WR_EXISTS 1     /* guarded write: there is a claim */
#endif
#ifndef WR_NUMBER
#define WR_NUMBER 1     /* guarded write: writes = :known */
#endif
#ifndef WR_FRESH
#define WR_FRESH 1      /* no other write has its number; 0: it is known + 1 */
#endif
#ifndef WR_KEPT
#define WR_KEPT 1       /* an acquire keeps the number of the last write; 0: it sets it to 0 */
#endif
#ifndef WR_OWN
#define WR_OWN 1        /* write refused, but the row shows this number: it was applied */
#endif
#ifndef WR_RENUMBER
#define WR_RENUMBER 1   /* write refused, the claim is ours, another own number: send again; 0: lost */
#endif
#ifndef WR_UNKNOWN
#define WR_UNKNOWN 1    /* write refused, the claim is not ours, and the row shows a number that we do not know: unknown;
                           0: not applied */
#endif
#ifndef SAVE_LATER
#define SAVE_LATER 1    /* guarded save: the end is before the new one */
#endif
#ifndef SAVE_AGAIN
#define SAVE_AGAIN 1    /* save refused because it met a later renewal: send again; 0: lost */
#endif
#ifndef FORCE_SEEN
#define FORCE_SEEN 1    /* force: the token is the one that was seen */
#endif
#ifndef FORCE_TOKEN
#define FORCE_TOKEN 1   /* force puts a fresh token */
#endif
#ifndef FORCE_VERSION
#define FORCE_VERSION 1 /* force adds 1 to the version */
#endif
#ifndef PUT_BELOW
#define PUT_BELOW 1     /* save without the lock: the version is below the one it brings */
#endif

#define ACQ 1
#define REN 2
#define REL 3
#define WR 4          /* guarded update: leaves the claim alone */
#define SAVE 5        /* guarded save: the whole row, with the claim and a new end */
#define WRUN 6        /* guarded write that gives the lock back */
#define DISOWN 7      /* release by token, after an acquire of unknown outcome */
#define FORCE 8
#define PUT 9         /* save without the lock */
#define FORCED 100    /* token of a force */
#define NOBODY 101    /* whose doing a save without the lock is */
#define NO_NUMBER 255           /* a row that never had one. A new row's own number stands for 0 with the row's version */
#define MUST(number,c) assert((c) || number==0)
#define STEP(name)    /* what a step is called, here and in tests/protocol/test_write_model.py: nothing to Spin */
#define CLIENT(t) ((t-1)/ROUNDS)

typedef Req {
  byte k; byte t; byte v;     /* kind, token, version */
  byte x;                     /* new end: the how-many-eth proposed in this acquisition */
  byte w; byte n;             /* number of the last write known, and of this one */
  byte e; byte s              /* ghosts: the tenure it belongs to; the how-many-eth logical write of it */
};
byte tok, ver, exp, wr;       /* the row; 0 = absent */
bool over;                    /* its last acquisition took over a claim that stood */
byte faults = FAULTS;
byte sq[N];                   /* last end proposed */
byte held[N];                 /* version of the claim that a client holds; 0 = none */
bool ending[N];               /* it is giving the lock back */
byte cur[N];                  /* token of its acquisition */
Req late[N], ren[N], frc, put;
/* ghosts */
byte era;                     /* tenures so far */
byte whose;                   /* token whose doing the last change of hands was */
byte last;                    /* last logical write of the present tenure that landed */
byte top;                     /* greatest fencing token given */
byte he[N];                   /* the tenure that a client holds */
byte gone[N];                 /* how that ended: 1 taken, 2 by force; or 3, given back by its own write */
byte ser[N];                  /* present logical write */
bool hit[N];                  /* it was applied */

#define GONE(i) if :: i<N && exp!=0 && he[i]==era && era!=0 -> gone[i]=why :: else fi
#if N>2
inline interrupted(why) { GONE(0); GONE(1); GONE(2) }
#else
inline interrupted(why) { GONE(0); GONE(1) }
#endif
#define IS_MINE(rule,m) ((tok==m.t || rule<1) && (ver==m.v || rule<2))

/* what DynamoDB does with a request, in one step; ok: its condition held, had: there was a claim before */
inline apply(m) {
  ok=0; had=(exp!=0);
  if
  :: m.k==ACQ ->
     if
     :: (exp==0 || tok!=m.t) && (tok!=m.t || !ACQ_NEW) ->        /* free, or found expired at this moment */
        MUST(42, whose!=m.t); interrupted(1); ver++; MUST(30, ver>top); top=ver; era++; whose=m.t; last=0;
        over=had; tok=m.t; exp=m.x; ok=1;
        if :: !WR_KEPT -> wr=0 :: WR_KEPT && wr==NO_NUMBER -> wr=200+m.t :: else fi
     :: exp!=0 || (tok==m.t && ACQ_NEW) -> skip                  /* refused */
     fi
  :: m.k==REN ->
     if
     :: IS_MINE(REN_MINE,m) && ((exp!=0 && exp<m.x) || !REN_LATER) ->
        MUST(50, exp==0 || tok==m.t); MUST(41, exp!=0 && era==m.e); MUST(40, m.x>exp); exp=m.x; ok=1
     :: else
     fi
  :: m.k==REL || m.k==DISOWN ->
     if
     :: (m.k==REL && (IS_MINE(2,m) || !REL_MINE)) || (m.k==DISOWN && tok==m.t) ->
        MUST(50, exp==0 || tok==m.t); exp=0; ok=1;
        if :: !REL_KEEP || !REL_VERSION -> tok=0 :: else fi;
        if :: !REL_VERSION -> ver=0; wr=0 :: else fi
     :: else
     fi
  :: m.k==WR || m.k==SAVE || m.k==WRUN ->
     if
     :: IS_MINE(WR_MINE,m) && (exp!=0 || !WR_EXISTS) && (wr==m.w || !WR_NUMBER) &&
        (m.k!=SAVE || exp<m.x || !SAVE_LATER) ->
        MUST(20, exp!=0 && era==m.e && m.s>last); MUST(40, m.k!=SAVE || m.x>exp);
        last=m.s; wr=m.n; ok=1;
        if :: he[CLIENT(m.t)]==m.e && ser[CLIENT(m.t)]==m.s -> hit[CLIENT(m.t)]=1 :: else fi;
        if :: m.k==SAVE -> exp=m.x :: m.k==WRUN -> interrupted(3); exp=0 :: else fi
     :: else
     fi
  :: m.k==FORCE ->
     if
     :: (tok==m.t || !FORCE_SEEN) && exp!=0 ->
        MUST(50, tok==m.t); interrupted(2); exp=0; whose=FORCED; ok=1;
        if :: FORCE_VERSION -> ver++ :: else fi;
        if :: FORCE_TOKEN -> tok=FORCED :: else fi
     :: else
     fi
  :: m.k==PUT ->
     if
     :: ver<m.v || !PUT_BELOW ->                                 /* free, or found expired at this moment */
        interrupted(1); tok=0; exp=0; wr=NO_NUMBER; ver=m.v; whose=NOBODY; ok=1
     :: exp!=0 || (ver>=m.v && PUT_BELOW) -> skip
     fi
  fi;
  printf("  lands: kind %d token %d version %d end %d known %d number %d -> %d; row: %d %d %d %d\n", m.k, m.t, m.v, m.x, m.w, m.n, ok, tok, ver, exp, wr)
}
inline clear(c) { c.k=0; c.t=0; c.v=0; c.x=0; c.w=0; c.n=0; c.e=0; c.s=0 }
inline copy(c,d) { c.k=d.k; c.t=d.t; c.v=d.v; c.x=d.x; c.w=d.w; c.n=d.n; c.e=d.e; c.s=d.s }

#define A_OURS (a_tok==t && a_ver==v)
#define A_MINE (A_OURS && a_exp!=0)
#define KNOWN(n) (n==known || (n>10*t && n<=10*t+ser[id] && WR_FRESH))
#define SHOWS_RELEASE (REL_SHOWN && ((A_OURS && a_exp==0) || (a_ver==v+1 && a_tok!=0 && a_tok!=FORCED && !a_over)))
#define START_WRITE ser[id]++; hit[id]=0; maybe=0; w++; q.s=ser[id]; q.n=(WR_FRESH -> 10*t+ser[id] : known+1); q.w=known

proctype Client(byte id) {
  byte n, w, t, v, known, tries, res, a_tok, a_ver, a_exp, a_wr, was;
  bool ok, had, a_had, a_over, maybe, again; Req q;
start:
  atomic {
  if
  :: n==ROUNDS -> goto dead
  :: STEP(acquire) n<ROUNDS -> t=(TOKEN_FRESH -> id*ROUNDS+n+1 : id*ROUNDS+1); n++; cur[id]=t; sq[id]=1; ser[id]=0; q.k=ACQ; q.t=t; q.x=1
  fi
  };

send:                                  /* a request and at most one repeat: res is 1 applied, 0 refused, 2 unknown */
  true;
  atomic {
  tries++;
  if :: tries==1 -> was=gone[id] :: else fi;
arrive:
  res=2;
  if
  :: apply(q);
     if
     :: STEP(lands_twice) TWICE && faults>0 && q.k!=ACQ && q.k!=DISOWN -> faults--; again=(q.k==REL); ok=0; had=0; goto twice
     :: STEP(answered) res=ok; a_had=had; a_tok=tok; a_ver=ver; a_exp=exp; a_wr=wr; a_over=(q.k==REL && over);
        if :: q.k==ACQ && tok==t && exp!=0 -> he[id]=era; gone[id]=0 :: else fi
     :: STEP(answer_lost) faults>0 -> faults--; maybe=1
     fi
  :: STEP(request_lost) faults>0 -> faults--; maybe=1
  :: STEP(delayed) faults>0 && late[id].k==0 -> faults--; maybe=1; copy(late[id],q)
  fi;
  ok=0; had=0;
  if :: res==2 && tries<2 -> goto ask :: else -> tries=0 fi;

  if                                   /* what the answer means */
  :: q.k==ACQ ->
     if
     :: res==1 || (ACQ_OWN && res==0 && a_tok==t && a_exp!=0) -> v=a_ver; held[id]=v; known=a_wr; q.v=v; q.e=he[id]
     :: STEP(disown) res==2 -> q.k=DISOWN; goto send
     :: else -> MUST(43, !(a_tok==t && a_exp!=0)); goto out               /* another holds it */
     fi
  :: q.k==DISOWN -> goto out
  :: q.k==WR || q.k==SAVE || q.k==WRUN ->
     if
     :: res==1 || (WR_OWN && res==0 && a_wr==q.n) ->
        MUST(21, hit[id]); known=q.n;                                     /* reported: applied */
        if :: q.k==WRUN -> goto out :: else fi
     :: res==2 -> skip                                                    /* reported: unknown */
     :: res==0 && A_MINE && a_wr!=known && !(WR_OWN && a_wr==q.n) && WR_RENUMBER -> known=a_wr; q.w=known; goto ask
     :: res==0 && A_MINE && a_wr==known && q.k==SAVE && SAVE_AGAIN -> goto ask
     :: else ->
        MUST(23, gone[id]!=0);                                            /* reported: lost, and not applied or unknown */
        MUST(21, (WR_UNKNOWN && !KNOWN(a_wr)) || !hit[id]);               /* nor does it land later: see 20 */
        goto out
     fi
  :: q.k==REL ->
     if
     :: res==2 -> skip                                                    /* reported: unknown */
     :: res==1 && a_had -> skip                                           /* reported: released */
     :: res!=2 && !(res==1 && a_had) &&
        ((!maybe && REL_FIRST && !SHOWS_RELEASE) || (REL_FORCED && a_ver==v+1 && a_tok==FORCED)) ->
        MUST(23, gone[id]!=0 || (again && (a_ver>v+1 || a_tok==0)))       /* reported: lost */
     :: else ->                                                           /* reported: released; 3: by its own write */
        MUST(22, !(was!=0 && was!=3 && !maybe) && !(was==2 && whose==FORCED))
     fi;
     goto out
  fi;

  if                                   /* holding */
  :: STEP(write) w<WRITES -> START_WRITE; ending[id]=0; q.k=WR
  :: STEP(save) w<WRITES -> START_WRITE; ending[id]=0; q.k=SAVE
  :: STEP(write_and_unlock) w<=WRITES -> START_WRITE; w=WRITES+1; ending[id]=1; q.k=WRUN
  :: STEP(release) ending[id]=1; maybe=0; q.k=REL; q.w=0; q.n=0; q.s=0; q.x=0
  :: STEP(crash) goto dead                                                /* the claim stands */
  fi;
ask:
  if :: q.k==ACQ || q.k==SAVE -> sq[id]++; q.x=sq[id] :: else fi;         /* each attempt proposes a later end */
  goto send;

twice:                                 /* others may do anything before the second copy */
  true;
  goto arrive;

out:
  clear(q); t=0; v=0; known=0; w=0; was=0; tries=0; res=0; a_tok=0; a_ver=0; a_exp=0; a_wr=0; a_had=0; a_over=0; maybe=0; again=0;
  cur[id]=0; held[id]=0; he[id]=0; gone[id]=0; hit[id]=0; ending[id]=0; ser[id]=0;
  goto start };
dead:
  held[id]=0
}
proctype Renewals(byte id) { byte n;             /* sent while held; they land whenever the network likes */
end: do
  :: atomic { STEP(renew) n<ROUNDS*RENEWS && held[id]!=0 && ren[id].k==0 -> n++; sq[id]++;
       ren[id].k=REN; ren[id].t=cur[id]; ren[id].v=held[id]; ren[id].x=sq[id]; ren[id].e=he[id] }
  od
}
proctype Network(byte id) { bool ok, had;
end: do
  :: atomic { STEP(answered) ren[id].k!=0 -> apply(ren[id]);
       if                                        /* refused: what the holder makes of it */
       :: !ok && held[id]!=0 && cur[id]==ren[id].t && !ending[id] &&
          !(REN_OWN && tok==ren[id].t && ver==ren[id].v && exp!=0) -> MUST(23, gone[id]!=0 || exp==0)
       :: else
       fi;
       if :: clear(ren[id]) :: STEP(lands_twice) faults>0 -> faults-- fi; ok=0; had=0 }
  :: atomic { STEP(request_lost) ren[id].k!=0 -> clear(ren[id]) }
  :: atomic { STEP(lands_late) late[id].k!=0 -> apply(late[id]); clear(late[id]); ok=0; had=0 }
  od
}
proctype Admin() { byte n; bool ok, had;         /* breaks the claim that it has seen */
end: do
  :: atomic { STEP(force) n<FORCES && exp!=0 && frc.k==0 -> n++; frc.k=FORCE; frc.t=tok }
  :: atomic { STEP(answered) frc.k!=0 -> apply(frc); if :: clear(frc) :: STEP(lands_twice) faults>0 -> faults-- fi; ok=0; had=0 }
  od
}
proctype Outsider() { byte n; bool ok, had;      /* saves the row without the lock, under a token above the one it knows */
end: do
  :: atomic { STEP(save_without_the_lock) n<PUTS && put.k==0 -> n++; put.k=PUT; put.v=ver+1 }
  :: atomic { STEP(answered) put.k!=0 -> apply(put); if :: clear(put) :: STEP(lands_twice) faults>0 -> faults-- fi; ok=0; had=0 }
  od
}
init { byte i; atomic {
  do :: i<N -> run Client(i); run Renewals(i); run Network(i); i++ :: else -> break od;
  if :: FORCES>0 -> run Admin() :: else fi; if :: PUTS>0 -> run Outsider() :: else fi; i=0 } }
