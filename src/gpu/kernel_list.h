/* kernel_list.h: every shared kernel, and how much of a launch's size one work-group does along x and y. The
   hosts look kernels up and compute their groups from this; tests/gpu/kernels_test.c has a case for each.

   A family of kernels computes the same of the same arguments, each in its way: a launch names the family,
   and what is best on the device is chosen (gpu/launch.h), or one of them by its own name. */
#ifndef DML_GPU_KERNEL_LIST_H
#define DML_GPU_KERNEL_LIST_H

/* The kernels of a family in all shapes of tiles, rows x columns of what they compute. */
#define DML__TILE_KERNELS(X, family)                                                                         \
    X(family##_128x128, 128, 128)                                                                            \
    X(family##_128x64, 64, 128)                                                                              \
    X(family##_64x64, 64, 64)                                                                                \
    X(family##_64x16, 16, 64)                                                                                \
    X(family##_16x64, 64, 16)                                                                                \
    X(family##_16x16, 16, 16)

/* What a group covers whose items do a run of elements each (gpu/elementwise.cl), and where they do one. */
enum { DML__COVERS_RUNS = 1024, DML__COVERS_RUNS_OF_ONE = 256 };

/* X(name, covers_x, covers_y) */
#define DML__KERNEL_LIST(X)                                                                                  \
    X(axpby, DML__COVERS_RUNS, 1)                                                                            \
    X(formula_forward, DML__COVERS_RUNS, 1)                                                                  \
    X(formula_backward, DML__COVERS_RUNS, 1)                                                                 \
    X(broadcast, DML__COVERS_RUNS, 1)                                                                        \
    X(sum_few, 256, 1)                                                                                       \
    X(bias_add, DML__COVERS_RUNS, 1)                                                                         \
    X(sgd_update, 256, 1)                                                                                    \
    X(adam_update, 256, 1)                                                                                   \
    X(rmsprop_update, 256, 1)                                                                                \
    X(adagrad_update, 256, 1)                                                                                \
    X(sum_squares, 1, 1)                                                                                     \
    X(clip_norm, 256, 1)                                                                                     \
    X(clip_values, 256, 1)                                                                                   \
    X(lamb_direction, 256, 1)                                                                                \
    X(trust, 256, 1)                                                                                         \
    DML__TILE_KERNELS(X, gemm)                                                                               \
    DML__TILE_KERNELS(X, conv2d_forward)                                                                     \
    DML__TILE_KERNELS(X, conv2d_backward_input)                                                              \
    DML__TILE_KERNELS(X, conv2d_backward_weights)                                                            \
    X(max_pool2d_forward, 256, 1)                                                                            \
    X(max_pool2d_backward, 256, 1)                                                                           \
    X(max_pool2d_backward_apart, 256, 1)                                                                     \
    X(avg_pool2d_forward, 256, 1)                                                                            \
    X(avg_pool2d_backward, 256, 1)                                                                           \
    X(local2d_forward, 256, 1)                                                                               \
    X(local2d_backward_input, 256, 1)                                                                        \
    X(local2d_backward_weights, 256, 1)                                                                      \
    X(slice2d_forward, 256, 1)                                                                               \
    X(slice2d_backward, 256, 1)                                                                              \
    X(sum_rows, 16, 1)                                                                                       \
    X(argmax, 16, 1)                                                                                         \
    X(cross_entropy_forward, 1, 1)                                                                           \
    X(cross_entropy_backward, 1, 8)                                                                          \
    X(cross_entropy_backward_target, 256, 1)                                                                 \
    X(loss_total, 1, 1)                                                                                      \
    X(loss_spread, 256, 1)                                                                                   \
    X(reduce_axis, 16, 1)                                                                                    \
    X(reduce_axis_backward, 256, 1)                                                                          \
    X(softmax_forward, 1, 1)                                                                                 \
    X(softmax_backward, 1, 1)                                                                                \
    X(batch_norm_moments, 16, 1)                                                                             \
    X(batch_norm_statistics, 16, 1)                                                                          \
    X(batch_norm_forward, DML__COVERS_RUNS, 1)                                                               \
    X(batch_norm_products, 16, 1)                                                                            \
    X(batch_norm_gradients, 16, 1)                                                                           \
    X(batch_norm_backward, DML__COVERS_RUNS, 1)                                                              \
    X(sample_norm_forward_team, 4, 1)                                                                        \
    X(sample_norm_backward_team, 4, 1)                                                                       \
    X(sample_norm_products, 16, 1)                                                                           \
    X(embedding_forward, DML__COVERS_RUNS, 1)                                                                \
    X(embedding_links_team, 16, 1)                                                                           \
    X(embedding_backward, DML__COVERS_RUNS, 1)                                                               \
    X(gather_forward, 256, 1)                                                                                \
    X(gather_backward, 256, 1)                                                                               \
    X(embedding_bag_forward, 256, 1)                                                                         \
    X(embedding_bag_backward, 256, 1)                                                                        \
    X(embedding_bag_weights, 256, 1)                                                                         \
    X(attention_forward_team, 64, 1)                                                                         \
    X(attention_levels, 256, 1)                                                                              \
    X(attention_backward_team, 64, 1)                                                                        \
    X(keep_rows, 256, 1)                                                                                     \
    X(rotary, 256, 1)                                                                                        \
    X(recurrent_copy, 256, 1)                                                                                \
    X(recurrent_forward, 256, 1)                                                                             \
    X(recurrent_backward, 256, 1)                                                                            \
    X(dropout, 256, 1)                                                                                       \
    X(strided_pack, 256, 1)                                                                                  \
    X(strided_unpack, 256, 1)                                                                                \
    X(half_narrow, DML__COVERS_RUNS, 1)                                                                      \
    X(half_widen, DML__COVERS_RUNS, 1)
/* Those of gpu/solo.cl, of which a group is one item. Devices that are no CPU don't have them. */
#define DML__SOLO_LIST(X)                                                                                    \
    X(gemm_solo, 64, 64)                                                                                     \
    X(conv2d_forward_solo, 64, 64)                                                                           \
    X(conv2d_backward_input_solo, 64, 64)                                                                    \
    X(conv2d_backward_weights_solo, 64, 64)                                                                  \
    X(sample_norm_forward_solo, 8, 1)                                                                        \
    X(sample_norm_backward_solo, 8, 1)                                                                       \
    X(embedding_links_solo, 256, 1)                                                                          \
    X(attention_forward_solo, 64, 1)                                                                         \
    X(attention_backward_solo, 64, 1)

/* Families of two: NAME_team, whose groups have many items, and NAME_solo. */
#define DML__PAIR_LIST(X)                                                                                    \
    X(sample_norm_forward)                                                                                   \
    X(sample_norm_backward)                                                                                  \
    X(embedding_links)                                                                                       \
    X(attention_forward)                                                                                     \
    X(attention_backward)

/* The others: each has DML__TILE_KERNELS, and one NAME_solo. */
#define DML__FAMILY_LIST(X)                                                                                  \
    X(gemm)                                                                                                  \
    X(conv2d_forward)                                                                                        \
    X(conv2d_backward_input)                                                                                 \
    X(conv2d_backward_weights)

enum {
#define DML__KERNEL_ENUM(name, covers_x, covers_y) DML__KERNEL_##name,
    DML__KERNEL_LIST(DML__KERNEL_ENUM) DML__SOLO_LIST(DML__KERNEL_ENUM)
#undef DML__KERNEL_ENUM
        DML__KERNEL_COUNT,
    DML__KERNEL_FIRST_SOLO = DML__KERNEL_gemm_solo
};

#endif
