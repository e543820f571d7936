#include "base/cpu.h"

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

static void at_least_one_processor(void)
{
    CHECK(dml_cpu_count() >= 1);
}

int main(void)
{
    RUN(names);
    RUN(the_environment_only_lowers);
    RUN(at_least_one_processor);
    return test_report("base/cpu");
}
