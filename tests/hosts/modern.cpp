// modern.cpp (C++17): the headers in a program that is compiled with every warning: options in structs, the
// macros with shapes and inputs, and a context that a unique_ptr closes.
#include "dml.h"

#include <array>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <vector>

namespace {

struct closer {
    void operator()(dml_context *context) const
    {
        dml_close(context);
    }
    void operator()(dml_program *program) const
    {
        dml_program_destroy(program);
    }
    void operator()(dml_trainer *trainer) const
    {
        dml_trainer_destroy(trainer);
    }
};
template <typename T> using owned = std::unique_ptr<T, closer>;

constexpr int batch = 8, in = 3, classes = 2;

// Members are destroyed from the last to the first: the context is closed at the end.
class classifier {
  public:
    explicit classifier(std::uint64_t seed)
    {
        dml_options options{};
        options.threads = 2;
        options.seed = seed;
        context.reset(dml_open(&options));
        dml_graph *graph = dml_graph_create(context.get());
        dml_node *x = dml_input(graph, "point", DML_F32, in), *t = dml_input(graph, "side", DML_I32);
        dml_node *w = dml_parameter(graph, "hidden.weight", dml_init_he(in), 8, in);
        dml_node *b = dml_parameter(graph, "hidden.bias", dml_init_constant(0), 8);
        dml_node *y = dml_dense(dml_relu(dml_dense_with(x, w, b)), classes);
        dml_trainer_options training{};
        training.batch = batch;
        training.optimizer = dml_sgd(0.1f, 0.9f);
        trainer.reset(dml_trainer_create(dml_softmax_cross_entropy(y, t), &training));
        dml_program_options predicting{};
        predicting.batch = batch;
        predict.reset(dml_compile(y, &predicting));
        check();
    }

    float step(const std::vector<float> &points, const std::vector<int> &sides)
    {
        float loss = 0;
        dml_trainer_step(trainer.get(), batch, DML_INPUTS(points.data(), sides.data()), &loss);
        check();
        return loss;
    }

    std::array<float, batch * classes> scores(const std::vector<float> &points)
    {
        std::array<float, batch * classes> scores{};
        dml_program_run(predict.get(), batch, DML_INPUTS(points.data()), scores.data());
        check();
        return scores;
    }

    void refuse()
    {
        dml_program_run(predict.get(), batch + 1, DML_INPUTS(static_cast<const void *>(nullptr)), nullptr);
        check();
    }

  private:
    void check() const
    {
        if (dml_status_of(context.get()) != DML_OK) throw std::runtime_error(dml_error(context.get()));
    }

    owned<dml_context> context;
    owned<dml_trainer> trainer;
    owned<dml_program> predict;
};

} // namespace

int main()
try {
    std::vector<float> points;
    std::vector<int> sides;
    for (int i = 0; i < batch; i++) {
        for (int d = 0; d < in; d++) points.push_back(static_cast<float>((i >> d & 1) * 2 - 1));
        sides.push_back(i & 1);
    }
    classifier c{ 4 };
    float loss = 0;
    for (int i = 0; i < 100; i++) loss = c.step(points, sides);
    int right = 0;
    const auto scores = c.scores(points);
    for (std::size_t i = 0; i < batch; i++) right += (scores[2 * i + 1] > scores[2 * i]) == (sides[i] == 1);
    std::printf("loss %.4f, %d of %d right\n", static_cast<double>(loss), right, batch);
    try {
        c.refuse();
        return 1;
    } catch (const std::runtime_error &error) {
        std::printf("refused: %s\n", error.what());
    }
    return right == batch ? 0 : 1;
} catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
