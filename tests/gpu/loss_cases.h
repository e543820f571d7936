/* loss_cases.h: the kernels of losses (included by kernels_test.c). */
#ifndef DML_TESTS_GPU_LOSS_CASES_H
#define DML_TESTS_GPU_LOSS_CASES_H

#include "kernels/cross_entropy.h"

#include "kernel_cases.h"

static const array no_array;

/* With labels, of which 1 is ignored, or a target; with weights of classes, and of each two rows, or without.
 */
static void cross_entropy_case(size_t rows, size_t classes, bool labelled, bool weighted, float smoothing,
                               float beta)
{
    const int lanes = classes <= 256 ? 16 : classes <= 1024 ? 64 : 256;
    const size_t groups = (rows * (size_t)lanes + 255) / 256;
    const size_t n = rows * classes;
    const float dloss = 3, scale = 0.25f;
    float *logits = numbers(n), *target = numbers(n), *of_class = numbers(classes), *of_row = numbers(rows);
    float *kept_rows = output(6 * rows + 1, 0), *grad = output(n, beta), *grad_target = output(n, beta);
    int *labels = malloc(rows * sizeof *labels);
    double *want_loss = malloc(rows * sizeof *want_loss), *want_share = malloc(rows * sizeof *want_share);
    double *want = malloc(n * sizeof *want), *want_target = malloc(n * sizeof *want_target);
    for (size_t i = 0; i < n; i++) logits[i] *= i / classes % 2 ? 300.0f : 4.0f; /* exp of them is infinite */
    for (size_t i = 0; i < n; i++) target[i] = fabsf(target[i]);
    for (size_t c = 0; c < classes; c++) of_class[c] = weighted ? fabsf(of_class[c]) : 1;
    for (size_t r = 0; r < rows; r++) of_row[r] = weighted ? fabsf(of_row[r]) : 1;
    for (size_t r = 0; r < rows; r++) {
        const float *x = logits + r * classes;
        labels[r] = (int)(test_random(&seed) % classes);
        double sum = 0, largest = -INFINITY, whole = 0, weight = (double)of_row[weighted ? r / 2 : r];
        if (labelled && labels[r] == 1) weight = 0;
        for (size_t c = 0; c < classes; c++) largest = fmax(largest, (double)x[c]);
        for (size_t c = 0; c < classes; c++) sum += exp((double)x[c] - largest);
        want_loss[r] = 0;
        want_share[r] = weight * (labelled ? (double)of_class[labels[r]] : 1);
        for (size_t c = 0; c < classes; c++) {
            const double t = labelled ? (int)c == labels[r] : (double)target[r * classes + c];
            const double q = (1 - (double)smoothing) * t + (double)smoothing / (double)classes;
            want[r * classes + c] = q * (double)of_class[c];
            whole += q * (double)of_class[c];
            want_loss[r] += weight * q * (double)of_class[c] * (log(sum) + largest - (double)x[c]);
        }
        for (size_t c = 0; c < classes; c++) {
            const size_t i = r * classes + c;
            const double k = weight * (double)scale * (double)dloss;
            want[i] = k * (whole * exp((double)x[c] - largest) / sum - want[i]) + kept(beta, grad[i]);
            want_target[i] =
                k * (1 - (double)smoothing) * (double)of_class[c] * (log(sum) + largest - (double)x[c]) +
                kept(beta, grad_target[i]);
        }
    }
    array al = upload(logits, n), at_target = labelled ? upload(labels, rows) : upload(target, n);
    array ac = weighted ? upload(of_class, classes) : no_array,
          ar = weighted ? upload(of_row, rows) : no_array;
    array ak = upload(kept_rows, 6 * rows + 1), ad = upload(&dloss, 1), ag = upload(grad, n);
    array agt = upload(grad_target, n);
    launch_ok((dml_launch){ .kernel = "cross_entropy_forward",
                            .size = { groups, 1 },
                            .buffer = { at(al), at(at_target), at(ac), at(ar), at(ak) },
                            .integer = { (int)rows, (int)classes, 2, labelled, labelled, 1, lanes },
                            .real = { smoothing } });
    const dml_ref place = { ak.buffer, at(ak).offset + 6 * rows * sizeof(float) };
    CHECK_INT(device.backend->write(&device, place, &scale, sizeof scale), DML_OK);
    launch_ok((dml_launch){ .kernel = "cross_entropy_backward_target",
                            .size = { n, 1 },
                            .buffer = { at(al), at(ac), at(ak), at(ad), at(agt) },
                            .integer = { (int)rows, (int)classes },
                            .real = { smoothing, beta } });
    launch_ok((dml_launch){ .kernel = "cross_entropy_backward",
                            .size = { groups, (classes + (size_t)lanes - 1) / (size_t)lanes },
                            .buffer = { at(al), at(at_target), at(ac), at(ak), at(ad), at(ag) },
                            .integer = { (int)rows, (int)classes, labelled, lanes },
                            .real = { smoothing, beta } });
    if (beta == 0) /* over the logits */
        launch_ok((dml_launch){ .kernel = "cross_entropy_backward",
                                .size = { groups, (classes + (size_t)lanes - 1) / (size_t)lanes },
                                .buffer = { at(al), at(at_target), at(ac), at(ak), at(ad), at(al) },
                                .integer = { (int)rows, (int)classes, labelled, lanes },
                                .real = { smoothing, beta } });
    download(al, beta == 0 ? logits : NULL), download(at_target, NULL);
    if (weighted) download(ac, NULL), download(ar, NULL);
    download(ak, kept_rows), download(ad, NULL), download(ag, grad), download(agt, grad_target);
    check("cross_entropy_forward", kept_rows + 3 * rows, want_loss, rows, 1);
    check("cross_entropy_forward's shares", kept_rows + 4 * rows, want_share, rows, 1);
    check("cross_entropy_backward", grad, want, n, 1);
    check("cross_entropy_backward_target", grad_target, want_target, n, 1);
    if (beta == 0) check("cross_entropy_backward in place", logits, want, n, 1);
    free(logits), free(target), free(of_class), free(of_row), free(kept_rows), free(grad), free(grad_target);
    free(labels), free(want_loss), free(want_share), free(want), free(want_target);
}

static void test_cross_entropy_forward(void)
{
    cross_entropy_case(1, 1, false, false, 0, 0);
    cross_entropy_case(17, 10, true, false, 0, 0);
    cross_entropy_case(16, 33, true, true, 0.25f, 0);
    cross_entropy_case(5, 19, false, true, 0.5f, 0);
    cross_entropy_case(9, 700, true, false, 0, 0);
    cross_entropy_case(3, 5001, false, true, 0.25f, 0);
    /* labels that are no class read nothing outside, and show; the ignored one doesn't */
    const float logits[6] = { 1, 2, 3, 4, NAN, 6 };
    const int labels[3] = { -1, 2000000000, -100 };
    float kept_rows[18] = { 0 };
    array al = upload(logits, 6), ab = upload(labels, 3), ak = upload(kept_rows, 18);
    launch_ok((dml_launch){ .kernel = "cross_entropy_forward",
                            .size = { 1, 1 },
                            .buffer = { at(al), at(ab), { 0 }, { 0 }, at(ak) },
                            .integer = { 3, 2, 1, 1, 1, -100, 16 } });
    download(al, NULL), download(ab, NULL), download(ak, kept_rows);
    CHECK(isnan(kept_rows[9]) && isnan(kept_rows[10]) && kept_rows[11] == 0);
    /* nor is a row looked at whose class weighs nothing, unless it is smoothed */
    const float beside[6] = { NAN, 1, 0.5f, 2, -INFINITY, 1 }, of_class[2] = { 0, 1 };
    const int classes[3] = { 0, 1, 0 };
    for (int smooth = 0; smooth < 2; smooth++) {
        al = upload(beside, 6), ab = upload(classes, 3), ak = upload(kept_rows, 18);
        array ac = upload(of_class, 2);
        launch_ok((dml_launch){ .kernel = "cross_entropy_forward",
                                .size = { 1, 1 },
                                .buffer = { at(al), at(ab), at(ac), { 0 }, at(ak) },
                                .integer = { 3, 2, 1, 1, 0, 0, 16 },
                                .real = { smooth ? 0.5f : 0 } });
        download(al, NULL), download(ab, NULL), download(ac, NULL), download(ak, kept_rows);
        CHECK(smooth ? isnan(kept_rows[9]) : kept_rows[9] == 0);
        CHECK(smooth || (kept_rows[11] == 0 && kept_rows[15] == 0 && kept_rows[17] == 0));
        CHECK(kept_rows[10] > 0.1f && kept_rows[10] < 1 && kept_rows[16] == 1);
    }
}

/* Classes in two parts of one launch each, which are joined as hosts join them. */
static void cross_entropy_in_parts(size_t rows, size_t classes, size_t cut, float smoothing)
{
    const float dloss = 3, scale = 0.25f;
    const size_t n = rows * classes, begin[2] = { 0, cut }, wide[2] = { cut, classes - cut };
    float *logits = numbers(n), *own[2], *kept_rows[2], *known = output(2 * 4 * rows, 0);
    float *want_rows = output(6 * rows, 0), *want = output(n, 0);
    int32_t *labels = malloc(rows * sizeof *labels);
    for (size_t i = 0; i < n; i++) logits[i] *= i / classes % 2 ? 300.0f : 4.0f;
    for (size_t r = 0; r < rows; r++) labels[r] = (int)(test_random(&seed) % classes);
    dml_cross_entropy p = { .rows = rows,
                            .classes = classes,
                            .logits = logits,
                            .labels = labels,
                            .each = 1,
                            .smoothing = smoothing,
                            .ignores = true,
                            .ignored = 1,
                            .kept = want_rows };
    float unused;
    dml_cross_entropy_forward(NULL, &p, false, &unused);
    dml_cross_entropy_backward(NULL, &p, scale * dloss, 0, want);
    array ab = upload(labels, rows), ad = upload(&dloss, 1), al[2], ak[2];
    for (int k = 0; k < 2; k++) {
        own[k] = output(rows * wide[k], 0), kept_rows[k] = output(6 * rows + 1, 0);
        for (size_t i = 0; i < rows * wide[k]; i++)
            own[k][i] = logits[i / wide[k] * classes + begin[k] + i % wide[k]];
        al[k] = upload(own[k], rows * wide[k]), ak[k] = upload(kept_rows[k], 6 * rows + 1);
        launch_ok(
            (dml_launch){ .kernel = "cross_entropy_forward",
                          .size = { (rows + 15) / 16, 1 },
                          .buffer = { at(al[k]), at(ab), { 0 }, { 0 }, at(ak[k]) },
                          .integer = { (int)rows, (int)wide[k], 1, 1, 1, 1, 16, (int)begin[k], (int)classes },
                          .real = { smoothing } });
        download(ak[k], kept_rows[k]);
        memcpy(known + (size_t)k * 4 * rows, kept_rows[k], 4 * rows * sizeof(float));
    }
    for (int k = 0; k < 2; k++) {
        p.kept = kept_rows[k];
        dml_cross_entropy_join(NULL, &p, known, 2, false, &unused);
        kept_rows[k][6 * rows] = scale;
        ak[k] = upload(kept_rows[k], 6 * rows + 1);
        launch_ok((dml_launch){ .kernel = "cross_entropy_backward",
                                .size = { (rows + 15) / 16, (wide[k] + 15) / 16 },
                                .buffer = { at(al[k]), at(ab), { 0 }, at(ak[k]), at(ad), at(al[k]) },
                                .integer = { (int)rows, (int)wide[k], 1, 16, (int)begin[k], (int)classes },
                                .real = { smoothing, 0 } });
        download(al[k], own[k]), download(ak[k], NULL);
        double *of_part = malloc(rows * wide[k] * sizeof *of_part), *losses = malloc(rows * sizeof *losses);
        for (size_t i = 0; i < rows * wide[k]; i++)
            of_part[i] = (double)want[i / wide[k] * classes + begin[k] + i % wide[k]];
        for (size_t r = 0; r < rows; r++) losses[r] = (double)want_rows[3 * rows + r];
        check("cross_entropy_forward in parts", kept_rows[k] + 3 * rows, losses, rows, 2);
        check("cross_entropy_backward in parts", own[k], of_part, rows * wide[k], 2);
        free(of_part), free(losses), free(own[k]), free(kept_rows[k]);
    }
    download(ab, NULL), download(ad, NULL);
    free(logits), free(known), free(want_rows), free(want), free(labels);
}

/* A part of -inf alone, with the label in it: nothing to add, and as far below the others as they are. */
static void cross_entropy_of_nothing(void)
{
    const float nothing[2] = { -INFINITY, -INFINITY };
    const int label = 0;
    float kept_row[6] = { 0 };
    array al = upload(nothing, 2), ab = upload(&label, 1), ak = upload(kept_row, 6);
    launch_ok((dml_launch){ .kernel = "cross_entropy_forward",
                            .size = { 1, 1 },
                            .buffer = { at(al), at(ab), { 0 }, { 0 }, at(ak) },
                            .integer = { 1, 2, 1, 1, 0, 0, 16, 0, 4 },
                            .real = { 0.5f } });
    download(al, NULL), download(ab, NULL), download(ak, kept_row);
    CHECK(kept_row[0] == -INFINITY && kept_row[1] == 0 && kept_row[2] == 0.75f && kept_row[3] == 0);
}

static void test_cross_entropy_backward(void)
{
    cross_entropy_of_nothing();
    cross_entropy_in_parts(29, 11, 4, 0);
    cross_entropy_in_parts(17, 40, 33, 0.25f);
    for (int b = 0; b < upto(BETAS); b++) cross_entropy_case(29, 11, true, b > 0, 0, betas[b]);
}

static void test_cross_entropy_backward_target(void)
{
    for (int b = 0; b < upto(BETAS); b++) cross_entropy_case(7, 21, false, b > 0, 0.125f, betas[b]);
}

/* `each` values to a weight, or no weights. */
static void loss_case(size_t n, size_t each, float of_all, bool mean, float beta)
{
    const size_t count = each ? n / each : n;
    const float dloss = 1.5f, factor = 0.5f;
    float *x = numbers(n), *weights = numbers(count), *dx = output(n, beta), y = NAN, scale = NAN;
    double sum = 0, divisor = 0, *want_dx = malloc((n + 1) * sizeof *want_dx);
    for (size_t i = 0; i < count; i++) weights[i] = each ? of_all * (fabsf(weights[i]) + 1) : 1;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * (each ? (double)weights[i / each] : 1);
    for (size_t i = 0; i < count; i++) divisor += (double)factor * (double)weights[i];
    if (!mean) divisor = 1;
    const double want_scale = divisor == 0 ? 0 : 1 / divisor, want = want_scale * sum;
    for (size_t i = 0; i < n; i++)
        want_dx[i] = (double)dloss * want_scale * (each ? (double)weights[i / each] : 1) + kept(beta, dx[i]);
    array ax = upload(x, n), aw = each ? upload(weights, count) : no_array, ay = upload(&y, 1);
    array as = upload(&scale, 1), al = upload(&dloss, 1), ad = upload(dx, n);
    launch_ok((dml_launch){ .kernel = "loss_total",
                            .size = { 1, 1 },
                            .buffer = { at(ax), at(aw), at(aw), at(ay), at(as) },
                            .integer = { (int)n, (int)each, (int)count, mean },
                            .real = { factor } });
    launch_ok((dml_launch){ .kernel = "loss_spread",
                            .size = { n, 1 },
                            .buffer = { at(aw), at(as), at(al), at(ad) },
                            .integer = { (int)n, (int)each },
                            .real = { beta } });
    download(ax, NULL), download(ay, &y), download(as, &scale), download(al, NULL), download(ad, dx);
    if (each) download(aw, NULL);
    check("loss_total", &y, &want, 1, 1);
    check("loss_total's scale", &scale, &want_scale, 1, 1);
    check("loss_spread", dx, want_dx, n, 1);
    free(x), free(weights), free(dx), free(want_dx);
}

static void test_loss_total(void)
{
    loss_case(1, 0, 1, true, 0);
    loss_case(1000, 0, 1, true, 0);
    loss_case(1001, 7, 1, true, 0);
    loss_case(300, 1, 1, false, 0);
    loss_case(300, 3, 0, true, 0); /* a mean over nothing */
}

static void test_loss_spread(void)
{
    for (int b = 0; b < upto(BETAS); b++) loss_case(260, 4, 1, true, betas[b]);
}

#endif
