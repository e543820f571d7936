#ifndef DML_GRAPH_PRINT_C
#define DML_GRAPH_PRINT_C

#include "graph/print.h"

#ifndef DML_NO_STDIO

#include "graph/node.h"
#include "graph/op.h"

#include <string.h>

static dml_status dml__printed(const dml_graph *graph, FILE *file, const char *what)
{
    if (fflush(file) == 0 && !ferror(file)) return DML_OK;
    return dml__fail(&graph->context->error, DML_ERROR_IO, "can't write %s of the graph", what);
}

static bool dml__is_parameter(const dml_node *node)
{
    return node->op == dml__parameter_op();
}

/* The parameters that this node is the first to use, and how many of them are trained. */
static void dml__count_own(const dml_node *node, size_t *all, size_t *trained)
{
    *all = *trained = 0;
    for (int i = 0; i < node->inputs; i++) {
        const dml_node *p = node->input[i];
        bool first = dml__is_parameter(p);
        for (int k = 0; k < i; k++) first = first && node->input[k] != p;
        for (const dml_node *earlier = p->next; first && earlier != node; earlier = earlier->next)
            for (int k = 0; k < earlier->inputs; k++) first = first && earlier->input[k] != p;
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

static dml__widths dml__find_widths(const dml_graph *graph)
{
    dml__widths widths = { 4, 4, 6 };
    for (const dml_node *node = graph->first; node; node = node->next) {
        char does[256], output[DML_SHAPE_TEXT];
        if (dml__is_parameter(node)) continue;
        dml__widen(&widths.name, node->name);
        dml__widen(&widths.does, dml__what_it_does(node, does, sizeof does));
        dml__widen(&widths.output, dml_shape_format(&node->shape, output));
    }
    return widths;
}

DML_API dml_status dml_graph_print(const dml_graph *graph, FILE *file)
{
    if (!graph) return DML_ERROR_ARGUMENT;
    if (!file) return dml__fail_null(&graph->context->error, "dml_graph_print", "file");
    const dml__widths w = dml__find_widths(graph);
    size_t all = 0, all_trained = 0;
    double all_flops = 0;
    fprintf(file, "%-*s  %-*s  %-*s  %12s  %14s\n", w.name, "node", w.does, "does", w.output, "output",
            "parameters", "flops");
    for (const dml_node *node = graph->first; node; node = node->next) {
        char does[256], output[DML_SHAPE_TEXT];
        size_t own, trained;
        if (dml__is_parameter(node)) continue;
        dml__count_own(node, &own, &trained);
        fprintf(file, "%-*s  %-*s  %-*s  %12llu  %14.0f\n", w.name, node->name, w.does,
                dml__what_it_does(node, does, sizeof does), w.output, dml_shape_format(&node->shape, output),
                (unsigned long long)own, dml_node_flops(node));
        all += own;
        all_trained += trained;
        all_flops += dml_node_flops(node);
    }
    fprintf(file, "%llu parameters, %llu of them trained; %.0f flops forward for one sample\n",
            (unsigned long long)all, (unsigned long long)all_trained, all_flops);
    return dml__printed(graph, file, "a table");
}

/* Text inside quotes of the dot language. */
static void dml__print_quoted(FILE *file, const char *text)
{
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') fputc('\\', file);
        fputc((unsigned char)*text < ' ' ? ' ' : *text, file);
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
    for (const dml_node *node = graph->first; node; node = node->next) dml__print_dot_node(node, file);
    fputs("}\n", file);
    return dml__printed(graph, file, "a drawing");
}

#endif

#endif
