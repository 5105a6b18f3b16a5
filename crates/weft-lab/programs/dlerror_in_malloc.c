/* A library whose constructor looks up a function that does not exist, as libfaketime's does. dlsym
 * allocates an error message, which the next call of dlsym frees. */
#include <dlfcn.h>
#include <stdlib.h>

static void *volatile found;

__attribute__((constructor)) static void look(void)
{
	found = dlsym(RTLD_NEXT, "a_function_that_is_missing");
	found = malloc(1);
	free(found);
}
