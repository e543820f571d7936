"""The peers' side of the protocol in bench/peers.h, for those in Python."""

import os
import sys
import time

THREADS = int(os.environ.get("BENCH_PEER_THREADS", "1"))


def median_seconds(run, seconds):
    """As bench_time in bench/bench.h."""
    start = time.perf_counter()
    run()
    once = time.perf_counter() - start
    if once > 5e-3 and once >= seconds:
        return once
    start = time.perf_counter()
    run()
    once = time.perf_counter() - start + 1e-9
    calls = 1 if once > 50e-6 else int(50e-6 / once) + 1
    samples, spent = [], 0.0
    while not samples or (len(samples) < 99 and spent < seconds):
        start = time.perf_counter()
        for _ in range(calls):
            run()
        took = time.perf_counter() - start
        spent += took
        samples.append(took / calls)
    return sorted(samples)[len(samples) // 2]


def serve(version, cases, timed=median_seconds):
    """cases: a function for each kind of case, which takes its words and returns (run, words of the answer);
    timed: what takes that run and the seconds."""
    answers = os.fdopen(os.dup(1), "w")  # what a library prints goes elsewhere
    os.dup2(2, 1)

    def say(text):
        answers.write(text + "\n")
        answers.flush()

    say("ready " + version)
    run = None
    for line in sys.stdin:
        words = line.split()
        if words and words[0] == "time" and run:
            say(repr(timed(run, float(words[1]))))
            continue
        run = None
        if len(words) < 2 or words[0] != "case" or words[1] not in cases:
            say("no such case")
            continue
        try:
            run, said = cases[words[1]](words[2:])
            say("ok " + said)
        except Exception as error:  # whatever the library can't do is said, and the next case comes
            run = None
            say("no " + str(error).split("\n")[0])
