# Files of ours read by the reference implementation of the format, in Python, and its files read by us.
. tests/build/check.sh
PYTHON=$DML_BUILD/python/bin/python

# A Python that has the packages: built once, in the build folder.
prepare() {
    if [ -x "$PYTHON" ] && "$PYTHON" -c 'import numpy, safetensors' 2>/dev/null; then return 0; fi
    rm -rf "$DML_BUILD/python"
    has python3 || { why='python3 is not installed'; return 1; }
    mkdir -p "$DML_BUILD"
    python3 -m venv "$DML_BUILD/python" >"$WORK/said" 2>&1 || { why='python3 makes no venv'; return 1; }
    "$PYTHON" -m pip install -q --disable-pip-version-check --timeout 10 --retries 1 safetensors numpy \
        >"$WORK/said" 2>&1 || { why='pip brings no safetensors and numpy'; return 1; }
}

if ! prepare; then
    skip 'safetensors in Python' "$why"
    report base/safetensors_python
    exit
fi

cat >"$WORK/tool.c" <<'END'
#include "base/safetensors.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Writes the file that the Python side expects. */
static dml_status save(dml__memory *memory, const char *path, dml__error *error)
{
    static float matrix[6] = { 0.5f, -1, 2, 3e30f, 4, -0.0f };
    static double real[1] = { 1.0 / 3 };
    static int32_t i32[2] = { -5, 6 };
    static int64_t i64[3] = { -1234567890123456789, 0, 1 };
    static uint8_t u8[3] = { 0, 128, 255 };
    static const int two_three[] = { 2, 3 }, two[] = { 2 }, three[] = { 3, 1 }, none[] = { 4, 0 };
    const dml__tensor tensors[] = {
        { "u8", DML_U8, 2, three, u8 },
        { "matrix", DML_F32, 2, two_three, matrix },
        { "scalar \"\xce\xb1\"\n", DML_F64, 0, NULL, real },
        { "i32", DML_I32, 1, two, i32 },
        { "i64", DML_I64, 1, three, i64 },
        { "empty", DML_F32, 2, none, NULL },
    };
    const dml__metadata metadata[] = { { "format", "np" }, { "k\\\xc3\xa9", "\t\xf0\x9f\x98\x80" } };
    return dml__safetensors_save(memory, path, tensors, 6, metadata, 2, error);
}

/* Prints a file: a line for each tensor: name, dtype, shape, and its numbers. */
static dml_status show(dml__memory *memory, const char *path, dml__error *error)
{
    dml__safetensors *file;
    dml_status status = dml__safetensors_open_file(memory, path, &file, error);
    for (int i = 0; status == DML_OK && i < dml__safetensors_count(file); i++) {
        const dml__safetensors_entry *e = dml__safetensors_at(file, i);
        const size_t bytes = (size_t)(e->end - e->begin), size = dml_dtype_size(e->dtype);
        void *data = malloc(bytes + 1);
        status = dml__safetensors_read(file, i, data, error);
        printf("%s %s", e->name, e->dtype_text);
        for (int d = 0; d < e->ndim; d++) printf(" %d", (int)e->dims[d]);
        printf(":");
        for (size_t k = 0; size && k < bytes / size; k++) {
            if (e->dtype == DML_F32) printf(" %.9g", (double)((float *)data)[k]);
            if (e->dtype == DML_F64) printf(" %.17g", ((double *)data)[k]);
            if (e->dtype == DML_I32) printf(" %d", (int)((int32_t *)data)[k]);
            if (e->dtype == DML_I64) printf(" %lld", (long long)((int64_t *)data)[k]);
            if (e->dtype == DML_U8) printf(" %d", ((uint8_t *)data)[k]);
        }
        printf("\n");
        free(data);
    }
    if (status == DML_OK) {
        int pairs;
        const dml__metadata *metadata = dml__safetensors_pairs(file, &pairs);
        for (int i = 0; i < pairs; i++) printf("%s = %s\n", metadata[i].key, metadata[i].value);
        dml__safetensors_close(file);
    }
    return status;
}

int main(int argc, char **argv)
{
    dml__memory memory;
    dml__error error = { DML_OK, "", 0 };
    if (argc != 3) return 2;
    dml__memory_init(&memory, NULL, NULL, 0);
    const dml_status status = strcmp(argv[1], "save") == 0 ? save(&memory, argv[2], &error)
                                                           : show(&memory, argv[2], &error);
    if (status != DML_OK) fprintf(stderr, "%s\n", error.text);
    return status != DML_OK;
}
END

cat >"$WORK/read_ours.py" <<'END'
import sys
import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file

want = {
    "u8": np.array([[0], [128], [255]], np.uint8),
    "matrix": np.array([[0.5, -1, 2], [3e30, 4, -0.0]], np.float32),
    'scalar "\u03b1"\n': np.array(1 / 3, np.float64),
    "i32": np.array([-5, 6], np.int32),
    "i64": np.array([-1234567890123456789, 0, 1], np.int64),
    "empty": np.zeros((4, 0), np.float32),
}
got = load_file(sys.argv[1])
assert set(got) == set(want), got.keys()
for name, array in want.items():
    assert got[name].dtype == array.dtype and got[name].shape == array.shape, name
    assert got[name].tobytes() == array.tobytes(), name
with safe_open(sys.argv[1], "np") as file:
    metadata = file.metadata()
    assert len(metadata.pop("dml.crc32c")) == 8
    assert metadata == {"format": "np", "k\\\u00e9": "\t\U0001f600"}, metadata
END

cat >"$WORK/write.py" <<'END'
import sys
import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

if sys.argv[1] == "new":
    save_file({
        "f32": np.array([[1.5, -2], [0.1, 2**-149]], np.float32),
        "f64": np.array([0.1, -1e300]),
        "i64": np.array([[[-1234567890123456789]], [[7]]]),
        "i32": np.array(-3, np.int32),
        "u8": np.arange(3, dtype=np.uint8),
        "f16": np.zeros((2, 1), np.float16),
        "none": np.zeros((0, 2), np.float32),
        'name "\u03b1"\n': np.array([1], np.uint8),
    }, sys.argv[2], metadata={"made by": "\u00e9\"\\"})
else: # rewrites a file of ours, and keeps its metadata or not
    with safe_open(sys.argv[3], "np") as file:
        metadata = file.metadata()
    if sys.argv[1] == "dropping":
        del metadata["dml.crc32c"]
    save_file(dict(load_file(sys.argv[3]), more=np.zeros(1, np.float32)), sys.argv[2], metadata=metadata)
END

cat >"$WORK/want" <<'END'
f16 F16 2 1:
f32 F32 2 2: 1.5 -2 0.100000001 1.40129846e-45
f64 F64 2: 0.10000000000000001 -1.0000000000000001e+300
i32 I32: -3
i64 I64 2 1 1: -1234567890123456789 7
made by = é"\
name "α"
 U8 1: 1
none F32 0 2:
u8 U8 3: 0 1 2
END

build() {
    (cd src/base && $CC -std=c99 $WARN -Wno-error -O1 -DDML__SEPARATE -I.. "$WORK/tool.c" safetensors*.c \
        json.c file.c float16.c checksum.c cpu.c dtype.c error.c memory.c -o "$WORK/tool")
}

same_text() {
    "$WORK/tool" show "$WORK/theirs.safetensors" >"$WORK/got" || return 1
    LC_ALL=C sort "$WORK/want" >"$WORK/want.sorted"
    LC_ALL=C sort "$WORK/got" | diff "$WORK/want.sorted" -
}

check 'the tool builds' build
check 'we save' "$WORK/tool" save "$WORK/ours.safetensors"
check 'Python reads ours' "$PYTHON" "$WORK/read_ours.py" "$WORK/ours.safetensors"
check 'Python saves' "$PYTHON" "$WORK/write.py" new "$WORK/theirs.safetensors"
check 'we read its file' same_text
check 'Python rewrites ours' "$PYTHON" "$WORK/write.py" keeping "$WORK/kept.safetensors" "$WORK/ours.safetensors"
check_fails 'a rewritten file with the old checksum' 'have the tool drop it' "$WORK/tool" show \
    "$WORK/kept.safetensors"
check 'Python rewrites ours without it' "$PYTHON" "$WORK/write.py" dropping "$WORK/dropped.safetensors" \
    "$WORK/ours.safetensors"
check 'we read that' "$WORK/tool" show "$WORK/dropped.safetensors"
report base/safetensors_python
