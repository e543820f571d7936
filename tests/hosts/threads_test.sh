# Programs with threads: OpenMP's, a server's, and two users of dml in one process.
. tests/hosts/host.sh

PLAIN="$CC -std=c11 -O1" ASAN="$CC -std=c11 -O1 -g1 -fsanitize=address" TSAN="$QUICK_CC -std=c11 -O1 -g1 -fsanitize=thread"
PLAINLY='-O0 -DDML_NO_AVX' # the implementation, which takes less time to compile so

check "two_contexts builds" host two_contexts "$PLAIN"
check "two_contexts" "$WORK/two_contexts"
check "predict_threads builds" host predict_threads "$PLAIN"
check "predict_threads" "$WORK/predict_threads"

if has_flag "$CC" -fopenmp; then
    check "openmp builds" host openmp "$PLAIN -fopenmp"
    check "openmp" "$WORK/openmp"
else
    skip openmp "$CC has no OpenMP"
fi
if has_flag "$CC -fopenmp" -fsanitize=address; then
    check "openmp builds with AddressSanitizer" host openmp "$ASAN -fopenmp" "$ASAN $PLAINLY"
    check "openmp with AddressSanitizer" "$WORK/openmp"
else
    skip "openmp with AddressSanitizer" "$CC has no OpenMP with it"
fi
if has_flag "$QUICK_CC" -fsanitize=thread; then
    for program in predict_threads two_contexts; do
        check "$program builds with ThreadSanitizer" host $program "$TSAN" "$TSAN $PLAINLY"
        check "$program with ThreadSanitizer" env TSAN_OPTIONS=halt_on_error=1 "$WORK/$program"
    done
else
    skip "predict_threads and two_contexts with ThreadSanitizer" "$QUICK_CC has none"
fi
report hosts/threads
