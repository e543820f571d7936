#include "base/cpu.h"
#include "base/cpu_internal.h"

#include "../test.h"

static void names(void)
{
    CHECK_STRING(dml_isa_name(DML_ISA_SCALAR), "scalar");
    CHECK_STRING(dml_isa_name(DML_ISA_NEON), "neon");
    CHECK_STRING(dml_isa_name(DML_ISA_AVX2), "avx2");
    CHECK_STRING(dml_isa_name(DML_ISA_AVX512), "avx512");
    CHECK_STRING(dml_isa_name(DML__ISA_COUNT), "?");
}

/* DML_ISA lowers the instruction set and never raises it. */
static void the_environment_only_lowers(void)
{
    unsetenv("DML_ISA");
    const dml_isa best = dml_cpu_isa();
    CHECK((int)best >= 0 && best < DML__ISA_COUNT);
    for (int isa = 0; isa < (int)DML__ISA_COUNT; isa++) {
        setenv("DML_ISA", dml_isa_name((dml_isa)isa), 1);
        CHECK(dml_cpu_isa() <= best);
        CHECK((int)dml_cpu_isa() <= isa || dml_cpu_isa() == best);
    }
    setenv("DML_ISA", "scalar", 1);
    CHECK_INT(dml_cpu_isa(), DML_ISA_SCALAR);
    setenv("DML_ISA", "nonsense", 1);
    CHECK_INT(dml_cpu_isa(), best);
    unsetenv("DML_ISA");
#if defined(__aarch64__)
    CHECK_INT(best, DML_ISA_NEON);
#endif
}

/* A name that is none is found out, so that a slip of the pen doesn't run the best there is. */
static void names_that_are_none(void)
{
    static const char *const none[] = { "avx3", "AVX2", "avx", "avx2 ", "sse", "?" };
    const char *wanted = "";
    unsetenv("DML_ISA");
    CHECK(dml__cpu_isa_known(&wanted));
    for (int isa = 0; isa < (int)DML__ISA_COUNT; isa++) {
        setenv("DML_ISA", dml_isa_name((dml_isa)isa), 1);
        CHECK(dml__cpu_isa_known(&wanted));
    }
    setenv("DML_ISA", "", 1);
    CHECK(dml__cpu_isa_known(&wanted));
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        setenv("DML_ISA", none[i], 1);
        CHECK(!dml__cpu_isa_known(&wanted));
        CHECK_STRING(wanted, none[i]);
    }
    unsetenv("DML_ISA");
}

static void at_least_one_processor(void)
{
    CHECK(dml_cpu_count() >= 1);
}

int main(void)
{
    RUN(names);
    RUN(the_environment_only_lowers);
    RUN(names_that_are_none);
    RUN(at_least_one_processor);
    return test_report("base/cpu");
}
