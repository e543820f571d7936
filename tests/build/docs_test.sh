# What the documents say of the sources is so.
. tests/build/check.sh

same_reference() {
    "$DML_BUILD/reference" dml.h dml_comm.h >"$WORK/reference.md" && cmp "$WORK/reference.md" docs/reference.md
}
check "docs/reference.md is what make amalgamate writes" same_reference

same_ops() {
    "$DML_BUILD/ops" dml.h | cmp - docs/ops.md && "$DML_BUILD/ops" dml.h README.md | cmp - README.md
}
check "docs/ops.md and the README's ops are what make amalgamate writes" same_ops

every_function() {
    sed -n 's/^DML_API .*[ *]\(dml_[a-z0-9_]*\)(.*/\1/p' src/*/*.h | sort -u >"$WORK/functions"
    while read -r name; do
        grep -q "^- .*\`$name\`" docs/reference.md || echo "$name" | tee -a "$WORK/missing"
    done <"$WORK/functions"
    [ -s "$WORK/functions" ] && [ ! -f "$WORK/missing" ]
}
check "the reference lists every public function" every_function

# The program in the README, from its first comment to its end, is samples/hello.c.
same_hello() {
    sed -n '/^```c$/,/^```$/p' README.md | sed -n '/^\/\* hello: /,/^}$/p' >"$WORK/readme.c"
    [ -s "$WORK/readme.c" ] && diff "$WORK/readme.c" samples/hello.c
}
check "the README's program is samples/hello.c" same_hello

# The guide's only whole program is compiled as it stands.
kernels_alone() {
    sed -n '/^## Only the kernels/,/^## /p' docs/guide.md | sed -n '/^```c$/,/^```$/p' | sed '/^```/d' >"$WORK/kernels.c"
    $QUICK -std=c99 $WARN -I. "$WORK/kernels.c" -o "$WORK/kernels" -lm -lpthread -ldl && "$WORK/kernels" >"$WORK/rows" &&
        printf '%s\n' '0.090 0.245 0.665' '0.665 0.245 0.090' | cmp - "$WORK/rows"
}
check "the guide's program of kernels alone" kernels_alone

links_lead_somewhere() {
    for page in README.md CONTRIBUTING.md docs/*.md docs/*/*.md; do
        for link in $(sed -n 's/.*](\([^)#]*\)[)#].*/\1/p' "$page" | grep -v '^http'); do
            [ -e "$(dirname "$page")/$link" ] || echo "$page links to $link" | tee -a "$WORK/broken"
        done
    done
    [ ! -f "$WORK/broken" ]
}
check "every link of the documents leads to a file" links_lead_somewhere

report build/docs
