# hello.c, compiled as the README says: beside dml.h and nothing else.
. tests/build/check.sh

cp dml.h samples/hello.c "$WORK/"
cd "$WORK" || exit 1
check "cc -O2 hello.c -lm -lpthread" "$CC" -O2 hello.c -lm -lpthread
check "it runs" ./a.out
./a.out >picture 2>&1
check "the loss is small at the end" awk '$1 == "step" { loss = $4 } END { exit !(NR > 5 && loss < 0.05) }' picture
check "the picture is 32 rows of 64" awk '!/^step/ { rows++; bad += length($0) != 64 } END { exit rows != 32 || bad }' picture
# Each point of a spiral lies in the network's picture of it: left and right of it is its own kind.
check "each point is on its own side" awk '
    /^step/ { next }
    { points += gsub(/o/, "o") + gsub(/#/, "#"); wrong += /o\./ + /\.o/ + /# / + / #/ }
    END { print points " points, " wrong " rows with a wrong one"; exit points < 100 || wrong > 2 }' picture
check "--list-devices" sh -c './a.out --list-devices | grep -q "^cpu "'
check "--device" sh -c './a.out --device cpu | cmp - picture'
check_fails "no such device" "no device 'abacus'" ./a.out --device abacus
check_fails "a stray word" "usage: hello" ./a.out picture
cd "$ROOT" || exit 1
report samples/hello
