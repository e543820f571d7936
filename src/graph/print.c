#ifndef DML_GRAPH_PRINT_C
#define DML_GRAPH_PRINT_C

#include "graph/print.h"

#include "graph/node.h"
#include "graph/op.h"
#include "graph/program_internal.h"

#include <string.h>

/* ---- what a program costs ---- */

/* A node's share, in the largest batch. */
typedef struct dml__cost {
    double forward, backward; /* flops */
    size_t value, kept;       /* bytes of its own; that live until backward */
} dml__cost;

static const dml__slot *dml__slot_of_input(const dml_program *program, const dml_node *node, int i)
{
    return &program->slot[program->slot_of_node[node->input[i]->index]];
}

/* Whether backward reads the value at slot `root`. */
static bool dml__kept_for_backward(const dml_program *program, int root)
{
    for (int s = 0; s < program->slots; s++) {
        const dml__slot *slot = &program->slot[s];
        const dml_node *node = slot->node;
        if (!slot->has_gradient) continue;
        if (slot->root == root && (node->op->needs & DML__NEEDS_OUTPUT) && !slot->gone) return true;
        for (int i = 0; i < node->inputs; i++)
            if ((node->op->needs & DML__NEEDS_INPUT(i)) && dml__slot_of_input(program, node, i)->root == root)
                return true;
    }
    return false;
}

/* How many times the work of forward backward is. */
static int dml__backward_work(const dml_program *program, const dml__slot *slot)
{
    const dml_node *node = slot->node;
    int wanted = 0, larger = 0;
    if (!slot->has_gradient || !node->op->backward) return 0;
    for (int i = 0; i < node->inputs; i++) {
        const dml_node *x = node->input[i];
        if (!dml__slot_of_input(program, node, i)->has_gradient) continue;
        wanted++;
        if (x->op != dml__parameter_op() || x->shape.ndim > 1) larger++;
    }
    return larger > 2 ? 2 : larger > 0 ? larger : wanted > 0;
}

static dml__cost dml__cost_of(const dml_program *program, int s)
{
    const dml__slot *slot = &program->slot[s];
    const dml_node *node = slot->node;
    bool batched = node->batched;
    for (int i = 0; i < node->inputs; i++) batched = batched || node->input[i]->batched;
    dml__cost cost;
    memset(&cost, 0, sizeof cost);
    cost.forward = dml_node_flops(node) * (batched ? program->batch : 1);
    cost.backward = cost.forward * dml__backward_work(program, slot);
    const bool elsewhere =
        slot->root != s || node->op == dml__parameter_op() || (node->op == dml__input_op() && program->given);
    const size_t bytes = elsewhere ? 0
                                   : dml_shape_count(&node->shape) * dml_dtype_size(node->dtype) *
                                         (node->batched ? (size_t)program->batch : 1);
    if (slot->value_at == 3 * s) cost.value = bytes;
    if (bytes && dml__kept_for_backward(program, s)) cost.kept = slot->narrowed ? bytes / 2 : bytes;
    if (slot->has_gradient) cost.kept += dml__left_bytes(node, program->batch);
    return cost;
}

DML_API dml_program_totals dml_program_summary(const dml_program *program)
{
    dml_program_totals totals;
    memset(&totals, 0, sizeof totals);
    if (!program) return totals;
    totals.batch = program->batch;
    totals.training = program->training;
    for (int s = 0; s < program->slots; s++) {
        const dml_node *node = program->slot[s].node;
        const dml__cost cost = dml__cost_of(program, s);
        totals.forward_flops += cost.forward;
        totals.backward_flops += cost.backward;
        totals.kept_bytes += cost.kept;
        if (node->op != dml__parameter_op()) continue;
        totals.parameters += dml_shape_count(&node->shape);
        if (!node->frozen) totals.trained += dml_shape_count(&node->shape);
    }
    totals.arena_bytes = program->bytes;
    totals.weight_bytes = program->graph->parameter_count * sizeof(float);
    totals.gradient_bytes = program->training ? program->graph->trained_count * sizeof(float) : 0;
    return totals;
}

#ifndef DML_NO_STDIO

static dml_status dml__printed(const dml_graph *graph, FILE *file, const char *what)
{
    if (fflush(file) == 0 && !ferror(file)) return DML_OK;
    return dml__fail(&graph->context->error, DML_ERROR_IO, "can't write %s of the graph", what);
}

static bool dml__is_parameter(const dml_node *node)
{
    return node->op == dml__parameter_op();
}

/* Whether a table has the node: a program's has what it runs, a graph's (NULL) all but decoders'. */
static bool dml__is_listed(const dml_program *program, const dml_node *node)
{
    return program ? dml__node_slot(program, node) >= 0 : !node->again;
}

/* The parameters that this node is the first of those listed to use, and how many of them are trained. */
static void dml__count_own(const dml_program *program, const dml_node *node, size_t *all, size_t *trained)
{
    *all = *trained = 0;
    for (int i = 0; i < node->inputs; i++) {
        const dml_node *p = node->input[i];
        bool first = dml__is_parameter(p);
        for (int k = 0; k < i; k++) first = first && node->input[k] != p;
        for (const dml_node *earlier = p->next; first && earlier != node; earlier = earlier->next)
            for (int k = 0; k < earlier->inputs && dml__is_listed(program, earlier); k++)
                first = first && earlier->input[k] != p;
        if (!first) continue;
        *all += dml_shape_count(&p->shape);
        if (!p->frozen) *trained += dml_shape_count(&p->shape);
    }
}

/* "input f32", or "conv2d, 6 filters, kernel 5 x 5, ..." */
static const char *dml__what_it_does(const dml_node *node, char *text, size_t bytes)
{
    char words[160];
    dml_node_describe(node, words, sizeof words);
    if (node->op == dml__input_op())
        snprintf(text, bytes, "input %s", dml_dtype_name(node->dtype));
    else
        snprintf(text, bytes, "%s%s%s", node->op->name, words[0] ? ", " : "", words);
    return text;
}

/* Columns as wide as their widest entry. */
typedef struct dml__widths {
    int name, does, output;
} dml__widths;

static void dml__widen(int *width, const char *text)
{
    const int length = (int)strlen(text);
    if (length > *width) *width = length;
}

static dml__widths dml__find_widths(const dml_graph *graph, const dml_program *program)
{
    dml__widths widths = { 4, 4, 6 };
    for (const dml_node *node = graph->first; node; node = node->next) {
        char does[256], output[DML_SHAPE_TEXT];
        if (dml__is_parameter(node) || !dml__is_listed(program, node)) continue;
        dml__widen(&widths.name, node->name);
        dml__widen(&widths.does, dml__what_it_does(node, does, sizeof does));
        dml__widen(&widths.output, dml_shape_format(&node->shape, output));
    }
    return widths;
}

/* The columns that both tables begin with. */
static void dml__print_node(const dml__widths *w, const dml_node *node, size_t parameters, FILE *file)
{
    char does[256], output[DML_SHAPE_TEXT];
    fprintf(file, "%-*s  %-*s  %-*s  %12llu", w->name, node->name, w->does,
            dml__what_it_does(node, does, sizeof does), w->output, dml_shape_format(&node->shape, output),
            (unsigned long long)parameters);
}

DML_API dml_status dml_graph_print(const dml_graph *graph, FILE *file)
{
    if (!graph) return DML_ERROR_ARGUMENT;
    if (!file) return dml__fail_null(&graph->context->error, "dml_graph_print", "file");
    const dml__widths w = dml__find_widths(graph, NULL);
    size_t all = 0, all_trained = 0, all_bytes = 0, all_saved = 0;
    double all_flops = 0;
    fprintf(file, "%-*s  %-*s  %-*s  %12s  %14s  %12s  %12s\n", w.name, "node", w.does, "does", w.output,
            "output", "parameters", "flops", "bytes", "saved");
    for (const dml_node *node = graph->first; node; node = node->next) {
        size_t own, trained;
        if (dml__is_parameter(node) || !dml__is_listed(NULL, node)) continue;
        const size_t bytes = node->op->view ? 0 : dml_shape_count(&node->shape) * dml_dtype_size(node->dtype);
        const size_t saved = dml__left_bytes(node, 1);
        dml__count_own(NULL, node, &own, &trained);
        dml__print_node(&w, node, own, file);
        fprintf(file, "  %14.0f  %12llu  %12llu\n", dml_node_flops(node), (unsigned long long)bytes,
                (unsigned long long)saved);
        all += own;
        all_trained += trained;
        all_flops += dml_node_flops(node);
        all_bytes += bytes;
        all_saved += saved;
    }
    fprintf(file,
            "%llu parameters, %llu of them trained; %.0f flops forward for one sample, %llu bytes of values "
            "and %llu saved for backward\n",
            (unsigned long long)all, (unsigned long long)all_trained, all_flops,
            (unsigned long long)all_bytes, (unsigned long long)all_saved);
    return dml__printed(graph, file, "a table");
}

static void dml__print_totals(const dml_program *program, FILE *file)
{
    const dml_program_totals t = dml_program_summary(program);
    fprintf(file, "batch=%d training=%d parameters=%llu trained=%llu frozen=%llu\n", t.batch, t.training,
            (unsigned long long)t.parameters, (unsigned long long)t.trained,
            (unsigned long long)(t.parameters - t.trained));
    fprintf(file, "forward_flops=%.0f backward_flops=%.0f\n", t.forward_flops, t.backward_flops);
    fprintf(file, "arena_bytes=%llu kept_bytes=%llu weight_bytes=%llu gradient_bytes=%llu\n",
            (unsigned long long)t.arena_bytes, (unsigned long long)t.kept_bytes,
            (unsigned long long)t.weight_bytes, (unsigned long long)t.gradient_bytes);
}

DML_API dml_status dml_program_print(const dml_program *program, FILE *file)
{
    if (!program) return DML_ERROR_ARGUMENT;
    const dml_graph *graph = program->graph;
    if (!file) return dml__fail_null(&graph->context->error, "dml_program_print", "file");
    const dml__widths w = dml__find_widths(graph, program);
    fprintf(file, "%-*s  %-*s  %-*s  %12s  %14s  %14s  %12s  %12s\n", w.name, "node", w.does, "does",
            w.output, "output", "parameters", "forward flops", "backward flops", "bytes", "kept");
    for (int s = 0; s < program->slots; s++) {
        const dml_node *node = program->slot[s].node;
        size_t own, trained;
        if (dml__is_parameter(node)) continue;
        const dml__cost cost = dml__cost_of(program, s);
        dml__count_own(program, node, &own, &trained);
        dml__print_node(&w, node, own, file);
        fprintf(file, "  %14.0f  %14.0f  %12llu  %12llu\n", cost.forward, cost.backward,
                (unsigned long long)cost.value, (unsigned long long)cost.kept);
    }
    dml__print_totals(program, file);
    return dml__printed(graph, file, "a program");
}

/* Text inside quotes of the dot language. */
static void dml__print_quoted(FILE *file, const char *text)
{
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') fputc('\\', file);
        fputc(*text, file);
    }
}

static void dml__print_dot_node(const dml_node *node, FILE *file)
{
    char does[256], output[DML_SHAPE_TEXT];
    const bool leaf = node->inputs == 0;
    fprintf(file, "    n%d [shape=%s, label=\"", node->index, leaf ? "ellipse" : "box");
    dml__print_quoted(file, node->name);
    fputs("\\n", file);
    dml__print_quoted(file, dml__what_it_does(node, does, sizeof does));
    fprintf(file, "\\n%s%s\"%s];\n", dml_shape_format(&node->shape, output),
            dml__is_parameter(node) && node->frozen ? ", frozen" : "",
            dml__is_parameter(node) ? ", style=dashed" : "");
    for (int i = 0; i < node->inputs; i++)
        fprintf(file, "    n%d -> n%d;\n", node->input[i]->index, node->index);
}

DML_API dml_status dml_graph_to_dot(const dml_graph *graph, FILE *file)
{
    if (!graph) return DML_ERROR_ARGUMENT;
    if (!file) return dml__fail_null(&graph->context->error, "dml_graph_to_dot", "file");
    fputs("digraph model {\n    rankdir=TB;\n", file);
    for (const dml_node *node = graph->first; node; node = node->next)
        if (dml__is_listed(NULL, node)) dml__print_dot_node(node, file);
    fputs("}\n", file);
    return dml__printed(graph, file, "a drawing");
}

#endif

#endif
