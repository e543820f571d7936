/* The pool's tests on mutex and condition, as where there is no futex. */
#define DML__NO_FUTEX
#include "thread/pool.c"

#define POOL_TEST_NAME "thread/pool_no_futex"
#include "pool_test.c"
