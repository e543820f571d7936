/* Products of matrices against what PyTorch computed. */
#include "ops/op_matmul.h"

#include "conformance.h"
#include "matmul_cases.h"
enum { CASES = sizeof matmul_cases / sizeof matmul_cases[0] };

static dml_node *build(const conformance_case *c, dml_node *const *tensor)
{
    const dml_matmul_options options = { c->number[0] != 0, c->number[1] != 0, c->number[2] };
    return dml_matmul_with(tensor[0], tensor[1], &options);
}

static void pytorch(void)
{
    for (int c = 0; c < CASES; c++) conformance_run(&matmul_cases[c], c, build, 2e-6);
}
EACH_BACKEND(pytorch)

int main(void)
{
    RUN_EACH(pytorch);
    return test_report("conformance/matmul");
}
