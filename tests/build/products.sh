# products.sh: source files that declare, and that implement, the products, in $WORK beside them; and two ways to try
# them. Scripts of this folder read it after check.sh.
cp dml* "$WORK/"
cd "$WORK" || exit 1

both='#include "dml.h"
#include "dml_comm.h"'
implement='#define DML_IMPLEMENTATION'
main='int main(void) { return dml_seconds() >= 0 && DML_VERSION_MAJOR >= 0 ? 0 : 1; }'

write() { # file, line...
    file=$1
    shift
    printf '%s\n' "$@" >"$file"
}

write declare_dml.c '#include "dml.h"' "$main"
write declare_comm.c '#include "dml_comm.h"' "$main"
write declare_both.c "$both" "$main"
write declare_twice.c "$both" "$both" "$main"
write implement_dml.c "$implement" '#include "dml.h"' "$main"
write implement_comm.c "$implement" '#include "dml_comm.h"' "$main"
write implement_both.c "$implement" "$both" "$main"
write implement_twice.c "$implement" "$both" "$both" "$main"
# System headers that came before have settled what they declare, so the program asks for all of it.
write implement_later.c '#ifndef _GNU_SOURCE' '#define _GNU_SOURCE' '#endif' "$both" "$implement" "$both" "$main"
write implement_reversed.c "$implement" '#include "dml_comm.h"' '#include "dml.h"' '#include "dml_comm.h"' "$main"

compile() { # compiler and flags, sources...: only looks
    flags=$1
    shift
    for source in "$@"; do $flags $WARN -fsyntax-only "$source" || return 1; done
}
build() { # compiler and flags, program, sources...
    flags=$1 program=$2
    shift 2
    $flags $WARN "$@" -o "$program" -lm -lpthread -ldl && "./$program"
}
