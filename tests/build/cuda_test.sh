# The CUDA backend as far as it goes without a GPU: it compiles, links, and says that there is no device.
. tests/build/check.sh

if [ -n "$NO_CUDA" ]; then
    skip "the CUDA backend" "$NO_CUDA"
    report build/cuda
    exit
fi
# nvcc makes it for all that is asked for, or not at all.
check "dml_cuda.o is built: $(cat "$DML_BUILD/gencode")" test -f "$DML_BUILD/dml_cuda.o"
cat >"$WORK/main.c" <<'END'
#define DML_IMPLEMENTATION
#include "dml.h"
#include <stdio.h>

int main(void)
{
    dml_context *context = dml_open(&(dml_options){ .device = "cuda" });
    puts(dml_error(context));
    const int failed = dml_status_of(context) != DML_OK;
    dml_close(context);
    return failed;
}
END
check "a program with dml_cuda.o links" \
    $QUICK -std=c99 $WARN -I. -DDML_CUDA "$WORK/main.c" "$DML_BUILD/dml_cuda.o" -o "$WORK/main" $CUDA_LIBS -lm -lpthread -ldl
if [ -e /dev/nvidiactl ]; then
    check "it opens the device" "$WORK/main"
else
    check_fails "without a driver it says so" 'no CUDA device' "$WORK/main"
fi
report build/cuda
