# Programs that hand dml its memory: a small machine's buffer, and an allocator of the host's.
. tests/hosts/host.sh

SMALL="$CC -std=c99 -D_GNU_SOURCE -O1 -DDML_NO_THREADS"
check "small builds" host small "$SMALL" "$SMALL -DDML_NO_AVX"
check "small" "$WORK/small"
cat "$WORK/said"
check "small builds with DML_NO_STDIO" host small "$SMALL -DDML_NO_STDIO" "$QUICK -DDML_NO_THREADS -DDML_NO_STDIO"
check "small with DML_NO_STDIO" "$WORK/small"
check "callbacks builds" host callbacks "$CC -std=c11 -O1"
check "callbacks" "$WORK/callbacks"
report hosts/memory
