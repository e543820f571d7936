# Programs that hand dml its memory: a small machine's buffer, and an allocator of the host's.
. tests/hosts/host.sh

for flags in -DDML_NO_THREADS "-DDML_NO_THREADS -DDML_NO_STDIO"; do
    check "small builds with $flags" host small "$CC -std=c99 -D_GNU_SOURCE -O1 -DDML_NO_AVX $flags"
    check "small with $flags" "$WORK/small"
    cat "$WORK/said"
done
check "callbacks builds" host callbacks "$CC -std=c11 -O1"
check "callbacks" "$WORK/callbacks"
report hosts/memory
