/* Recurrent layers against what PyTorch computed. */
#include "ops/op_recurrent.h"

#include "conformance.h"
#include "recurrent_cases.h"
enum { CASES = sizeof recurrent_cases / sizeof recurrent_cases[0] };

typedef dml_node *cell_builder(dml_node *x, dml_node *w_ih, dml_node *w_hh, dml_node *b_ih, dml_node *b_hh,
                               const dml_recurrent_options *options);

/* Layer by layer and direction by direction, of the case's parameters. */
static dml_node *build(const conformance_case *c, dml_node *const *tensor)
{
    cell_builder *const cell = c->name[0] == 'l'   ? dml_lstm_with
                               : c->name[0] == 'g' ? dml_gru_with
                                                   : dml_rnn_with;
    const bool lstm = c->name[0] == 'l', bias = c->number[2] != 0, last = c->number[6] != 0;
    const int layers = (int)c->number[0], directions = (int)c->number[1];
    dml_node *y = *tensor++, *lengths = c->number[3] != 0 ? *tensor++ : NULL;
    dml_node *h0 = c->number[4] != 0 ? *tensor++ : NULL, *c0 = c->number[5] != 0 ? *tensor++ : NULL;
    dml_node *out[9], *h[4], *cells[4];
    int outs = 0, hidden = 0;
    for (int layer = 0, i = 0; layer < layers; layer++) {
        dml_node *side[2];
        for (int d = 0; d < directions; d++, i++) {
            hidden = tensor[1]->shape.dims[1];
            const dml_recurrent_options o = {
                .reverse = d == 1,
                .relu = strcmp(c->name, "rnn_relu") == 0,
                .last_only = last && layer == layers - 1,
                .lengths = lengths,
                .h0 = h0 ? dml_slice(h0, 0, i, i + 1) : NULL,
                .c0 = c0 ? dml_slice(c0, 0, i, i + 1) : NULL,
                .h_n = c->number[7] != 0 ? &h[i] : NULL,
                .c_n = c->number[7] != 0 && lstm ? &cells[i] : NULL,
            };
            side[d] = cell(y, tensor[0], tensor[1], bias ? tensor[2] : NULL, bias ? tensor[3] : NULL, &o);
            tensor += bias ? 4 : 2;
        }
        y = directions == 2 ? dml_concat(side, 2, -1) : side[0];
    }
    if (c->number[7] == 0) return y;
    out[outs++] = dml_reshape(y, dml_shape_of(-1, hidden));
    for (int i = 0; i < layers * directions; i++) out[outs++] = h[i];
    for (int i = 0; lstm && i < layers * directions; i++) out[outs++] = cells[i];
    return dml_concat(out, outs, 0);
}

static void pytorch(void)
{
    for (int c = 0; c < CASES; c++) conformance_run(&recurrent_cases[c], c, build, 2e-6);
}
EACH_BACKEND(pytorch)

int main(void)
{
    RUN_EACH(pytorch);
    return test_report("conformance/recurrent");
}
