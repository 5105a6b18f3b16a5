/*
 * Creates an io_uring by the system call's number, and prints "ring: made" or the error. Then it
 * sends a line over a connection to itself.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(void)
{
	char parameters[120] = { 0 }, bytes[5] = "";
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof address;
	int listener = socket(AF_INET, SOCK_STREAM, 0), one = socket(AF_INET, SOCK_STREAM, 0), other;
	int ring = syscall(SYS_io_uring_setup, 8, parameters);

	printf("ring: %s\n", ring < 0 ? strerrorname_np(errno) : "made");
	if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)&address, &length) ||
	    connect(one, (struct sockaddr *)&address, sizeof address))
		return 1;
	other = accept(listener, NULL, NULL);
	for (int i = 0; i < 4; i++)
		if (write(one, "line", 4) != 4 || read(other, bytes, 4) != 4 ||
		    write(other, bytes, 4) != 4 || read(one, bytes, 4) != 4)
			return 1;
	puts(bytes);
	return 0;
}
