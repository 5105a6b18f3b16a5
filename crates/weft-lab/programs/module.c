/* A module that bindings.c opens, perhaps so that it calls the C library past the hooks. */
#include <unistd.h>

ssize_t module_read(int fd, void *to, size_t len);
ssize_t module_write(int fd, const void *from, size_t len);
int module_close(int fd);

ssize_t module_read(int fd, void *to, size_t len)
{
	return read(fd, to, len);
}

ssize_t module_write(int fd, const void *from, size_t len)
{
	return write(fd, from, len);
}

int module_close(int fd)
{
	return close(fd);
}
