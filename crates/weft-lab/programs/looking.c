/* A library that, before the program begins, looks for a function that there is not, as libfaketime
 * does. What dlsym keeps to say of that is freed by the next call of it. */
#include <dlfcn.h>
#include <stdlib.h>

static void *volatile found;

__attribute__((constructor)) static void look(void)
{
	found = dlsym(RTLD_NEXT, "a_function_that_is_missing");
	found = malloc(1);
	free(found);
}
