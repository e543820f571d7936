#ifndef DML_TRAIN_CHECKPOINT_C
#define DML_TRAIN_CHECKPOINT_C

#include "train/checkpoint.h"

#ifndef DML_NO_STDIO

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/safetensors.h"
#include "graph/weights.h"
#include "graph/weights_file.h"
#include "train/loss_scale.h"
#include "train/trainer_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* "dml.velocity.dense_1.weight": the part of an optimizer's state vector that belongs to a parameter. */
static void dml__state_name(const char *state, const char *parameter, char name[2 * DML_NAME_BYTES])
{
    snprintf(name, 2 * DML_NAME_BYTES, DML__OWN_TENSORS "%s.%s", state, parameter);
}

enum { DML__KEY_BYTES = 32 };

/* State i of an optimizer elsewhere: "server.sum". */
static void dml__away_name(const dml__away *away, int i, char name[])
{
    snprintf(name, DML__KEY_BYTES, "server.%s", away->row->state[i]);
}

/* ---- numbers from texts, the same in every locale ---- */

static bool dml__read_whole(const char *text, uint64_t *value)
{
    *value = 0;
    if (!text || !*text) return false;
    for (; *text; text++) {
        const unsigned digit = (unsigned char)*text - '0';
        if (digit > 9 || *value > (UINT64_MAX - digit) / 10) return false;
        *value = *value * 10 + digit;
    }
    return true;
}

/* Not negative, as in "0.1" or "1e-05". 9 digits and a double lead back to the very float. */
static bool dml__read_real(const char *text, float *value)
{
    double digits = 0;
    int scale = 0, power = 0, count = 0;
    bool point = false;
    for (; text && *text && *text != 'e'; text++) {
        if (*text == '.' && !point) {
            point = true;
            continue;
        }
        if (*text < '0' || *text > '9' || ++count > 40) return false;
        digits = digits * 10 + (*text - '0');
        scale -= point;
    }
    if (!count) return false;
    if (*text == 'e') {
        const bool negative = text[1] == '-';
        uint64_t magnitude;
        if (!dml__read_whole(text + (negative || text[1] == '+' ? 2 : 1), &magnitude) || magnitude > 99)
            return false;
        power = negative ? -(int)magnitude : (int)magnitude;
    }
    *value = (float)(digits * pow(10, scale + power));
    return true;
}

/* ---- notes ---- */

/* Why a text can't be a note; NULL: it can. */
static const char *dml__note_fault(const char *name, const char *text)
{
    if (!*name || strlen(name) >= DML__NOTE_NAME_BYTES) return "its name needs 1 to 47 bytes";
    if (dml__is_own_name(name) || strstr(name, "crc32c"))
        return "names that begin with \"dml.\" or have \"crc32c\" in them are the library's own";
    if (strlen(text) >= DML__NOTE_BYTES) return "it has more than 255 bytes";
    return dml__is_utf8(name) && dml__is_utf8(text) ? NULL : "its name or text is not UTF-8";
}

/* Which place has the name; "": which is free; -1: none. */
static int dml__find_note(const dml_trainer *trainer, const char *name)
{
    for (int i = 0; trainer->notes && i < DML__MOST_NOTES; i++)
        if (strcmp(trainer->notes[i].name, name) == 0) return i;
    return -1;
}

static const char *dml__put_note(dml_trainer *trainer, const char *name, const char *text)
{
    const char *fault = dml__note_fault(name, text ? text : "");
    int at = fault ? -1 : dml__find_note(trainer, name);
    if (!fault && !text && at >= 0) trainer->notes[at].name[0] = '\0';
    if (fault || !text) return fault;
    if (!dml__have_notes(trainer)) return "there is no memory left";
    if (at < 0) at = dml__find_note(trainer, "");
    if (at < 0) return "there are 16 others";
    memmove(trainer->notes[at].name, name, strlen(name) + 1); /* which may be what is there */
    memmove(trainer->notes[at].text, text, strlen(text) + 1);
    return NULL;
}

DML_API dml_status dml_trainer_set_note(dml_trainer *trainer, const char *name, const char *text)
{
    char shown[DML__SHOWN_BYTES];
    if (!trainer) return DML_ERROR_ARGUMENT;
    if (!name) return dml__fail_null(&trainer->context->error, "dml_trainer_set_note", "name");
    if (text && !dml__have_notes(trainer))
        return dml__fail(&trainer->context->error, DML_ERROR_MEMORY, "no memory left for a note");
    const char *fault = dml__put_note(trainer, name, text);
    return fault
               ? dml__fail(&trainer->context->error, DML_ERROR_ARGUMENT, "the note \"%s\" can't be kept: %s",
                           dml__shown(name, strlen(name), shown), fault)
               : DML_OK;
}

DML_API const char *dml_trainer_note(const dml_trainer *trainer, const char *name)
{
    const int at = trainer && name && *name ? dml__find_note(trainer, name) : -1;
    return at < 0 ? NULL : trainer->notes[at].text;
}

/* ---- writing ---- */

/* The optimizer's name, its numbers and nesterov, the loss scale's two, seed, step and those skipped; the
   part of a model; three of an optimizer elsewhere. */
enum { DML__MOST_RUN_PAIRS = 24 };

typedef struct dml__run_texts {
    int count;
    char key[DML__MOST_RUN_PAIRS][DML__KEY_BYTES], value[DML__MOST_RUN_PAIRS][DML__NUMBER_BYTES];
    dml__metadata pair[DML__MOST_RUN_PAIRS + DML__MOST_NOTES];
} dml__run_texts;

/* The next pair's value, to be written. */
static char *dml__add_run_text(dml__run_texts *texts, const char *name)
{
    const int i = texts->count++;
    DML_ASSERT(i < DML__MOST_RUN_PAIRS);
    snprintf(texts->key[i], DML__KEY_BYTES, DML__OWN_TENSORS "%s", name);
    texts->pair[i].key = texts->key[i];
    texts->pair[i].value = texts->value[i];
    return texts->value[i];
}

/* Number i of the optimizer, if its kind uses it. */
static float *dml__used_number(const dml_trainer *trainer, dml_optimizer *optimizer, int *i,
                               const char **name)
{
    float *number;
    while ((number = dml_optimizer_number(optimizer, *i, name)) != NULL && !(trainer->row->uses & 1u << *i))
        ++*i;
    return number;
}

static void dml__write_run(const dml_trainer *trainer, dml__run_texts *texts)
{
    dml_optimizer o = trainer->optimizer;
    const char *name;
    const float *number;
    texts->count = 0;
    snprintf(dml__add_run_text(texts, "optimizer"), DML__NUMBER_BYTES, "%s", trainer->row->name);
    for (int i = 0; (number = dml__used_number(trainer, &o, &i, &name)) != NULL; i++)
        dml__write_real(*number, dml__add_run_text(texts, name));
    if (o.kind == DML_SGD)
        snprintf(dml__add_run_text(texts, "nesterov"), DML__NUMBER_BYTES, "%d", o.nesterov ? 1 : 0);
    if (trainer->loss_scale > 0.0f) {
        dml__write_real(trainer->loss_scale, dml__add_run_text(texts, "loss_scale"));
        snprintf(dml__add_run_text(texts, "scaled_steps"), DML__NUMBER_BYTES, "%llu",
                 (unsigned long long)trainer->scaled_steps);
    }
    snprintf(dml__add_run_text(texts, "seed"), DML__NUMBER_BYTES, "%llu",
             (unsigned long long)trainer->context->seed);
    snprintf(dml__add_run_text(texts, "step"), DML__NUMBER_BYTES, "%llu", (unsigned long long)trainer->steps);
    snprintf(dml__add_run_text(texts, "skipped"), DML__NUMBER_BYTES, "%llu",
             (unsigned long long)trainer->skipped);
    char part[DML__PART_BYTES];
    if (*dml__part_text(trainer->program->graph, part))
        snprintf(dml__add_run_text(texts, DML__PART), DML__NUMBER_BYTES, "%s", part);
    const dml__away *away = &trainer->away;
    if (!away->row) return;
    snprintf(dml__add_run_text(texts, "server.optimizer"), DML__NUMBER_BYTES, "%s", away->row->name);
    snprintf(dml__add_run_text(texts, "server.states"), DML__NUMBER_BYTES, "%d", away->states);
    snprintf(dml__add_run_text(texts, "server.step"), DML__NUMBER_BYTES, "%llu",
             (unsigned long long)away->steps);
}

static void dml__write_notes(const dml_trainer *trainer, dml__run_texts *texts)
{
    for (int i = 0; trainer->notes && i < DML__MOST_NOTES; i++) {
        const dml__note *note = &trainer->notes[i];
        if (!note->name[0]) continue;
        texts->pair[texts->count].key = note->name;
        texts->pair[texts->count++].value = note->text;
    }
}

/* The tensors of one state vector: as the parameters', for those that are trained. Returns how many. */
static int dml__state_tensors(const dml_trainer *trainer, const char *state, const float *vector,
                              dml__tensor *tensors, char (*names)[2 * DML_NAME_BYTES])
{
    int count = 0;
    for (const dml_node *p = trainer->program->graph->first_parameter; p; p = p->next_parameter) {
        if (p->frozen) continue;
        dml__state_name(state, p->name, names[count]);
        tensors[count].name = names[count];
        tensors[count].dtype = DML_F32;
        tensors[count].ndim = p->shape.ndim;
        tensors[count].dims = p->shape.dims;
        tensors[count].data = vector + p->offset;
        count++;
    }
    return count;
}

/* Everything that the file will hold. `tensors` and `names` have room for each vector's parameters. */
static dml_status dml__write_checkpoint(dml_trainer *trainer, const char *path, dml__tensor *tensors,
                                        char (*names)[2 * DML_NAME_BYTES])
{
    dml_context *context = trainer->context;
    int count = dml_graph_parameters(trainer->program->graph);
    for (int v = 0; v < trainer->vectors; v++) {
        if (v == DML_GRADIENTS) continue;
        const bool whole = dml__check_whole_here(trainer, v) == DML_OK;
        const float *vector = whole ? dml_trainer_get(trainer, v, 0, dml_trainer_count(trainer, v)) : NULL;
        if (!vector) return context->error.status;
        if (v == DML_PARAMETERS)
            dml__graph_tensors(trainer->program->graph, vector, tensors);
        else
            count += dml__state_tensors(trainer, dml__vector_name(trainer, v), vector, tensors + count,
                                        names + count);
    }
    for (int i = 0; i < trainer->away.states; i++) {
        char state[DML__KEY_BYTES];
        dml__away_name(&trainer->away, i, state);
        count += dml__state_tensors(
            trainer, state, trainer->away.state + (size_t)i * dml_trainer_count(trainer, DML_GRADIENTS),
            tensors + count, names + count);
    }
    dml__run_texts texts;
    dml__write_run(trainer, &texts);
    dml__write_notes(trainer, &texts);
    return dml__safetensors_save(&context->memory, path, tensors, count, texts.pair, texts.count,
                                 &context->error);
}

static dml_status dml__trainer_save_in(dml_trainer *trainer, const char *path)
{
    dml_context *context = trainer->context;
    if (context->error.status != DML_OK) return context->error.status;
    if (dml__check_not_swapped(trainer) != DML_OK) return DML_ERROR_STATE;
    const size_t most = (size_t)dml_graph_parameters(trainer->program->graph) *
                        (size_t)(trainer->vectors - 1 + trainer->away.states);
    dml__tensor *tensors = (dml__tensor *)dml__allocate_array(&context->memory, most, sizeof *tensors);
    char(*names)[2 * DML_NAME_BYTES] =
        (char(*)[2 * DML_NAME_BYTES]) dml__allocate_array(&context->memory, most, sizeof *names);
    const dml_status status = tensors && names
                                  ? dml__write_checkpoint(trainer, path, tensors, names)
                                  : dml__fail(&context->error, DML_ERROR_MEMORY,
                                              "no memory left to list a checkpoint's %zu tensors", most);
    dml__release(&context->memory, names);
    dml__release(&context->memory, tensors);
    return status;
}

DML_API dml_status dml_trainer_save(dml_trainer *trainer, const char *path)
{
    if (!trainer) return DML_ERROR_ARGUMENT;
    if (!path) return dml__fail_null(&trainer->context->error, "dml_trainer_save", "path");
    const dml__entry entry = dml__enter(trainer->context);
    if (entry == DML__REFUSED) return DML_ERROR_STATE;
    const dml_status status = dml__trainer_save_in(trainer, path);
    dml__leave(trainer->context, entry);
    return status;
}

DML_API dml_status dml_trainer_check_save(dml_trainer *trainer, const char *path)
{
    if (!trainer) return DML_ERROR_ARGUMENT;
    if (!path) return dml__fail_null(&trainer->context->error, "dml_trainer_check_save", "path");
    dml_context *context = trainer->context;
    const dml__entry entry = dml__enter(context);
    if (entry == DML__REFUSED) return DML_ERROR_STATE;
    const dml_status status = dml__file_check_writable(path, &context->error);
    dml__leave(context, entry);
    return status;
}

/* ---- reading ---- */

static dml_status dml__read_run(const dml_trainer *trainer, const dml__safetensors *file, const char *path,
                                dml_trainer_run *run)
{
    dml__error *error = &trainer->context->error;
    const char *kind = dml__safetensors_text(file, "dml.optimizer"), *lacking = NULL, *name;
    char key[DML__KEY_BYTES];
    float *number;
    uint64_t nesterov = 0;
    memset(run, 0, sizeof *run);
    run->optimizer.kind = trainer->optimizer.kind;
    if (!kind)
        return dml__fail(error, DML_ERROR_FORMAT,
                         "\"%s\" holds no training run; a model alone is loaded by dml_graph_load", path);
    if (strcmp(kind, trainer->row->name) != 0)
        return dml__fail(error, DML_ERROR_FORMAT,
                         "\"%s\" was trained by %.32s, this trainer's optimizer is %s", path, kind,
                         trainer->row->name);
    for (int i = 0; (number = dml__used_number(trainer, &run->optimizer, &i, &name)) != NULL; i++) {
        snprintf(key, sizeof key, DML__OWN_TENSORS "%s", name);
        if (!dml__read_real(dml__safetensors_text(file, key), number)) lacking = name;
    }
    if (trainer->optimizer.kind == DML_SGD &&
        (!dml__read_whole(dml__safetensors_text(file, "dml.nesterov"), &nesterov) || nesterov > 1))
        lacking = "nesterov";
    if (!dml__read_whole(dml__safetensors_text(file, "dml.seed"), &run->seed)) lacking = "seed";
    if (!dml__read_whole(dml__safetensors_text(file, "dml.step"), &run->steps)) lacking = "step";
    const char *skipped =
        dml__safetensors_text(file, "dml.skipped"); /* files of before they counted have none */
    if (skipped && !dml__read_whole(skipped, &run->skipped)) lacking = "skipped";
    /* A run that didn't scale its loss may go on with a trainer that does, which then begins anew. */
    const char *scale = dml__safetensors_text(file, "dml.loss_scale");
    if (scale && trainer->loss_scale > 0.0f) {
        if (!dml__read_real(scale, &run->loss_scale) || !(run->loss_scale >= DML__LEAST_LOSS_SCALE) ||
            run->loss_scale > DML__MOST_LOSS_SCALE)
            lacking = "loss_scale";
        if (!dml__read_whole(dml__safetensors_text(file, "dml.scaled_steps"), &run->scaled_steps))
            lacking = "scaled_steps";
    }
    if (lacking)
        return dml__fail(error, DML_ERROR_FORMAT,
                         "\"%s\" lacks one of the numbers of a run, dml.%s, or has one that can't be", path,
                         lacking);
    run->optimizer.nesterov = nesterov == 1;
    return DML_OK;
}

/* A moving average of a run that kept none begins with the parameters, as in a new run. */
static void dml__saved_name(const dml_trainer *trainer, int vector, bool has_average, const char *parameter,
                            char name[2 * DML_NAME_BYTES])
{
    const bool average = vector == DML_OPTIMIZER_STATE + trainer->states;
    if (average && !has_average)
        snprintf(name, 2 * DML_NAME_BYTES, "%s", parameter);
    else
        dml__state_name(dml__vector_name(trainer, vector), parameter, name);
}

static bool dml__file_has_average(const dml__safetensors *file)
{
    static const char begins[] = DML__OWN_TENSORS "average.";
    for (int i = 0; i < dml__safetensors_count(file); i++)
        if (strncmp(dml__safetensors_at(file, i)->name, begins, sizeof begins - 1) == 0) return true;
    return false;
}

/* Whether the run's optimizer keeps the state that the trainer's does, and the file has it. */
static dml_status dml__check_states(const dml_trainer *trainer, const dml__safetensors *file,
                                    const char *path, const dml_optimizer *optimizer)
{
    dml__error *error = &trainer->context->error;
    const int states = trainer->states, saved = trainer->row->states(optimizer);
    if (saved != states)
        return dml__fail(error, DML_ERROR_FORMAT,
                         "\"%s\" was trained by %s with momentum %g and %d state vector%s, this trainer has "
                         "momentum %g and %d; is the momentum the same?",
                         path, trainer->row->name, (double)optimizer->momentum, saved, saved == 1 ? "" : "s",
                         (double)trainer->optimizer.momentum, states);
    const bool has_average = dml__file_has_average(file);
    dml_status status = DML_OK;
    for (int v = DML_OPTIMIZER_STATE; v < trainer->vectors; v++)
        for (const dml_node *p = trainer->program->graph->first_parameter; p && status == DML_OK;
             p = p->next_parameter) {
            char name[2 * DML_NAME_BYTES];
            int found;
            dml__saved_name(trainer, v, has_average, p->name, name);
            if (!p->frozen) status = dml__file_has(file, path, name, &p->shape, &found, error);
        }
    return status;
}

static dml_status dml__read_states(dml_trainer *trainer, dml__safetensors *file)
{
    const bool has_average = dml__file_has_average(file);
    dml_status status = DML_OK;
    for (int v = DML_OPTIMIZER_STATE; v < trainer->vectors && status == DML_OK; v++) {
        const size_t count = dml_trainer_count(trainer, v);
        float *vector = dml_trainer_host(trainer, v, 0, count);
        for (const dml_node *p = trainer->program->graph->first_parameter; p && status == DML_OK;
             p = p->next_parameter) {
            char name[2 * DML_NAME_BYTES];
            if (p->frozen) continue;
            dml__saved_name(trainer, v, has_average, p->name, name);
            status = dml__safetensors_read_floats(file, dml__safetensors_find(file, name), vector + p->offset,
                                                  &trainer->context->error);
        }
        if (status == DML_OK) status = dml_trainer_put(trainer, v, 0, count);
    }
    return status;
}

/* The optimizer that was elsewhere, if the file has one; *away is the caller's, who releases its memory. */
static dml_status dml__read_away(dml_trainer *trainer, dml__safetensors *file, const char *path,
                                 dml__away *away)
{
    dml__error *error = &trainer->context->error;
    const char *kind = dml__safetensors_text(file, "dml.server.optimizer");
    const size_t count = dml_trainer_count(trainer, DML_GRADIENTS);
    uint64_t states = 0;
    memset(away, 0, sizeof *away);
    if (!kind) return DML_OK;
    for (int k = 0; (away->row = dml__optimizer_row_of((dml_optimizer_kind)k)) != NULL; k++)
        if (strcmp(kind, away->row->name) == 0) break;
    if (!away->row || !dml__read_whole(dml__safetensors_text(file, "dml.server.states"), &states) ||
        !dml__read_whole(dml__safetensors_text(file, "dml.server.step"), &away->steps) ||
        states > DML__MAX_STATES || (states > 0 && !away->row->state[states - 1]))
        return dml__fail(
            error, DML_ERROR_FORMAT,
            "\"%s\" lacks what it should say of the servers' optimizer, %.32s, or has what can't be", path,
            kind);
    away->states = (int)states;
    if (!dml__away_make(trainer, away))
        return dml__fail(error, DML_ERROR_MEMORY, "no memory left for the servers' optimizer's state");
    dml_status status = DML_OK;
    for (int i = 0; i < away->states; i++)
        for (const dml_node *p = trainer->program->graph->first_parameter; p && status == DML_OK;
             p = p->next_parameter) {
            char state[DML__KEY_BYTES], name[2 * DML_NAME_BYTES];
            int found;
            if (p->frozen) continue;
            dml__away_name(away, i, state);
            dml__state_name(state, p->name, name);
            status = dml__file_has(file, path, name, &p->shape, &found, error);
            if (status == DML_OK)
                status = dml__safetensors_read_floats(file, found,
                                                      away->state + (size_t)i * count + p->offset, error);
        }
    return status;
}

static void dml__read_notes(dml_trainer *trainer, const dml__safetensors *file)
{
    int pairs;
    const dml__metadata *pair = dml__safetensors_pairs(file, &pairs);
    if (trainer->notes) memset(trainer->notes, 0, DML__MOST_NOTES * sizeof *trainer->notes);
    for (int i = 0; i < pairs; i++) dml__put_note(trainer, pair[i].key, pair[i].value);
}

/* Whether there is room for the notes in the file, before anything is changed. */
static dml_status dml__make_room_for_notes(dml_trainer *trainer, const dml__safetensors *file)
{
    int pairs;
    const dml__metadata *pair = dml__safetensors_pairs(file, &pairs);
    for (int i = 0; i < pairs; i++)
        if (!dml__note_fault(pair[i].key, pair[i].value) && !dml__have_notes(trainer))
            return dml__fail(&trainer->context->error, DML_ERROR_MEMORY,
                             "no memory left for a checkpoint's notes");
    return DML_OK;
}

static dml_status dml__check_not_kept(const dml_trainer *trainer)
{
    if (!trainer->sync.keeps) return DML_OK;
    return dml__fail(
        &trainer->context->error, DML_ERROR_STATE,
        "a checkpoint can't be loaded now, since the sync strategy goes on from what it was given "
        "(on servers, or in an outer optimizer): load it before the strategy is attached");
}

static dml_status dml__load_open_checkpoint(dml_trainer *trainer, dml__safetensors *file, const char *path,
                                            const dml__away *away)
{
    dml_graph *graph = trainer->program->graph;
    dml_trainer_run run;
    dml_status status = dml__check_not_swapped(trainer);
    if (status == DML_OK) status = dml__check_not_kept(trainer);
    if (status == DML_OK) status = dml__graph_fits_file(graph, file, path);
    if (status == DML_OK) status = dml__read_run(trainer, file, path, &run);
    if (status == DML_OK) status = dml__check_states(trainer, file, path, &run.optimizer);
    if (status == DML_OK) status = dml__make_room_for_notes(trainer, file);
    if (status == DML_OK && dml__complete_optimizer(&run.optimizer, &trainer->context->error) != DML_OK)
        status = trainer->context->error.status = DML_ERROR_FORMAT;
    if (status != DML_OK || (status = dml__graph_claim_writing(graph)) != DML_OK) return status;
    status = dml__graph_read_file(graph, file);
    if (status == DML_OK) status = dml__read_states(trainer, file);
    dml__graph_release(graph, false);
    if (status != DML_OK) return status;
    dml__read_notes(trainer, file);
    dml__away_put(trainer, away);
    dml__have_gathered(trainer);
    trainer->runs++;
    trainer->compared = false;
    trainer->held = 0;
    trainer->pending = false;
    trainer->spoiled = true; /* g is of the weights before */
    trainer->passes = 0;
    return dml_trainer_set_run(trainer, &run); /* which has been checked */
}

DML_API dml_status dml_trainer_load(dml_trainer *trainer, const char *path)
{
    if (!trainer) return DML_ERROR_ARGUMENT;
    if (!path) return dml__fail_null(&trainer->context->error, "dml_trainer_load", "path");
    dml_context *context = trainer->context;
    const dml__entry entry = dml__enter(context);
    if (entry == DML__REFUSED) return DML_ERROR_STATE;
    dml__safetensors *file = NULL;
    dml_status status = context->error.status;
    if (status == DML_OK) status = dml__safetensors_open_file(&context->memory, path, &file, &context->error);
    dml__away away;
    memset(&away, 0, sizeof away);
    if (status == DML_OK) status = dml__read_away(trainer, file, path, &away);
    if (status == DML_OK) status = dml__load_open_checkpoint(trainer, file, path, &away);
    if (trainer->away.state != away.state) dml__release(&context->memory, away.state);
    dml__safetensors_close(file);
    dml__leave(context, entry);
    return status;
}

#endif

#endif
