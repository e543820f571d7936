# hello.c, compiled as the README says: beside dml.h and nothing else.
. tests/build/check.sh

check "it has 30 lines at most" test "$(wc -l <samples/hello.c)" -le 30
cp dml.h samples/hello.c "$WORK/"
cd "$WORK" || exit 1
check "cc -O2 hello.c -lm -lpthread" $CC -O2 hello.c -lm -lpthread
check "it runs" ./a.out
./a.out >output 2>&1
check "it tells of a small loss, and nearly all points" awk '
    { sub(",", "", $2); good = ($1 == "loss") && ($2 + 0 > 0) && ($2 + 0 < 0.05) && ($3 > 500) && ($5 == 512) }
    END { exit !(NR == 1 && good) }' output
cd "$ROOT" || exit 1
report samples/hello
