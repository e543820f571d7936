/* plugin_host.c: loads two copies of a plugin and uses both, from two threads at once.

       plugin_host ./one.so ./two.so */
#include "expect.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

typedef struct plugin {
    void *library;
    double (*learn)(unsigned seed);
    double loss[2];
} plugin;

static void load(plugin *p, const char *path)
{
    p->library = dlopen(path, RTLD_NOW | RTLD_GLOBAL); /* so that names which they shared would meet */
    if (!p->library) fprintf(stderr, "%s\n", dlerror());
    EXPECT(p->library);
    void *found = dlsym(p->library, "plugin_learn");
    EXPECT(found);
    memcpy(&p->learn, &found, sizeof found);
}

static void *learn(void *argument)
{
    plugin *p = argument;
    for (unsigned seed = 0; seed < 2; seed++) p->loss[seed] = p->learn(seed);
    return NULL;
}

int main(int argc, char **argv)
{
    static plugin one, two;
    pthread_t thread;
    EXPECT(argc == 3);
    load(&one, argv[1]);
    load(&two, argv[2]);
    EXPECT(one.learn != two.learn);
    EXPECT(pthread_create(&thread, NULL, learn, &one) == 0);
    learn(&two);
    EXPECT(pthread_join(thread, NULL) == 0);
    EXPECT(one.loss[0] >= 0 && one.loss[0] < 0.1 && one.loss[0] != one.loss[1]);
    EXPECT(one.loss[0] == two.loss[0] && one.loss[1] == two.loss[1]);
    EXPECT(dlclose(one.library) == 0);
    EXPECT(two.learn(0) == two.loss[0]);
    EXPECT(dlclose(two.library) == 0);
    printf("both copies: loss %g\n", one.loss[0]);
    return 0;
}
