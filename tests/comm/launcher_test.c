/* What launchers tell the processes that they start. */
#include "../test.h"
#include "base/clock.h"
#include "comm/settings.h"

static const char *const names[] = { "RANK",
                                     "WORLD_SIZE",
                                     "MASTER_ADDR",
                                     "PMI_RANK",
                                     "PMI_SIZE",
                                     "MPI_LOCALNRANKS",
                                     "SLURM_PROCID",
                                     "SLURM_STEP_NUM_TASKS",
                                     "SLURM_STEP_NUM_NODES",
                                     "SLURM_NTASKS",
                                     "OMPI_COMM_WORLD_RANK",
                                     "OMPI_COMM_WORLD_SIZE",
                                     "DML_COMM_ENGINE",
                                     "OMPI_COMM_WORLD_LOCAL_SIZE" };

/* "NAME=value NAME=value": the environment; then what was read from it. */
static dml_status read_with(const char *environment, dml__comm_settings *settings, dml__error *error)
{
    char text[512];
    dml_comm_options options;
    memset(&options, 0, sizeof options);
    memset(error, 0, sizeof *error);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
    snprintf(text, sizeof text, "%s", environment);
    for (char *name = strtok(text, " "); name; name = strtok(NULL, " ")) {
        char *equals = strchr(name, '=');
        *equals = 0;
        setenv(name, equals + 1, 1);
    }
    dml__read_comm_settings(&options, settings, error);
    return error->status;
}

static void check_read(const char *environment, int rank, int world, const char *address)
{
    dml__comm_settings settings;
    dml__error error;
    CHECK_MESSAGE(!read_with(environment, &settings, &error), "%s: %s", environment, error.text);
    CHECK_MESSAGE(settings.net.rank == rank && settings.net.world == world, "%s: rank %d of %d", environment,
                  settings.net.rank, settings.net.world);
    CHECK_STRING(settings.net.master_addr, address);
}

static void each_launcher(void)
{
    check_read("", 0, 1, "127.0.0.1");
    check_read("OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_SIZE=3", 2, 3,
               "127.0.0.1");
    check_read("PMI_RANK=1 PMI_SIZE=2 MPI_LOCALNRANKS=2", 1, 2, "127.0.0.1");
    check_read("PMI_RANK=1 PMI_SIZE=2 SLURM_STEP_NUM_NODES=1", 1, 2, "127.0.0.1");
    check_read("SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NUM_NODES=1", 3, 4, "127.0.0.1");
    check_read("SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NUM_NODES=2 MASTER_ADDR=node7", 3, 4,
               "node7");
}

/* RANK and WORLD_SIZE come first; a batch script of Slurm's is no step of several. */
static void who_goes_first(void)
{
    check_read("RANK=0 WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=3", 0, 2, "127.0.0.1");
    check_read("SLURM_PROCID=0 SLURM_NTASKS=4", 0, 1, "127.0.0.1");
    check_read("PMI_RANK=5 PMI_SIZE=2", 0, 1, "127.0.0.1");
}

static void other_hosts(void)
{
    static const char *const environments[] = {
        "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_SIZE=2",
        "PMI_RANK=1 PMI_SIZE=2",
        "SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NUM_NODES=2",
    };
    for (size_t i = 0; i < sizeof environments / sizeof *environments; i++) {
        dml__comm_settings settings;
        dml__error error;
        CHECK_INT(read_with(environments[i], &settings, &error), DML_ERROR_ARGUMENT);
        CHECK_CONTAINS(error.text, "MASTER_ADDR must say where rank 0 is");
    }
}

static void engines(void)
{
    dml__comm_settings settings;
    dml__error error;
    check_read("DML_COMM_ENGINE=dml", 0, 1, "127.0.0.1");
    CHECK_INT(read_with("DML_COMM_ENGINE=steam", &settings, &error), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(error.text, "DML_COMM_ENGINE is \"steam\"");
#ifndef DML_MPI
    CHECK_INT(read_with("DML_COMM_ENGINE=mpi", &settings, &error), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(error.text, "compiled without -DDML_MPI");
#endif
}

int main(void)
{
    RUN(each_launcher);
    RUN(who_goes_first);
    RUN(other_hosts);
    RUN(engines);
    return test_report("comm/launcher");
}
