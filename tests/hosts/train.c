/* train.c: the first half of predict.c: trains a model, saves the run, and prints the scores that its own
   weights give.

       train model.safetensors */
#include "dml.h"
#include "expect.h"

enum { BATCH = 32, IN = 64, CLASSES = 10, SHOWN = 5 };

int main(int argc, char **argv)
{
    static float point[BATCH * IN], score[SHOWN * CLASSES];
    static int label[BATCH];
    EXPECT(argc == 2);
    for (int i = 0; i < BATCH * IN; i++) point[i] = (float)(i * 31 % 101) / 101 - 0.5f;
    for (int i = 0; i < BATCH; i++) label[i] = i % CLASSES;
    dml_context *ctx = dml_open(&(dml_options){ .seed = 11 });
    dml_graph *g = dml_graph_create(ctx);
    dml_node *x = dml_input(g, "point", DML_F32, IN), *t = dml_input(g, "label", DML_I32);
    dml_node *y = dml_dense(dml_relu(dml_dense(dml_relu(dml_dense(x, 256)), 256)), CLASSES);
    dml_trainer *trainer =
        dml_trainer_create(dml_softmax_cross_entropy(y, t),
                           &(dml_trainer_options){ .batch = BATCH, .optimizer = dml_sgd(0.02f, 0.9f) });
    for (int i = 0; i < 20; i++) dml_trainer_step(trainer, BATCH, DML_INPUTS(point, label), NULL);
    dml_trainer_save(trainer, argv[1]);
    dml_program *predict = dml_compile(y, &(dml_program_options){ .batch = SHOWN });
    dml_program_run(predict, SHOWN, DML_INPUTS(point), score);
    EXPECT_NO_ERROR(ctx);
    for (int i = 0; i < SHOWN * CLASSES; i++)
        printf("%.9g%c", (double)score[i], (i + 1) % CLASSES ? ' ' : '\n');
    dml_close(ctx);
    return 0;
}
