/*
 * no_syscall_dispatch PROGRAM: executes a program for which syscall user dispatch is refused, as
 * on a kernel before Linux 5.11.
 *
 * no_syscall_dispatch: sends a line there and back over a connection to itself, several times.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SET_SYSCALL_USER_DISPATCH 59

static int refuse_reports(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prctl, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SET_SYSCALL_USER_DISPATCH, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { sizeof code / sizeof *code, code };

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

static int talk(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof address;
	int listener = socket(AF_INET, SOCK_STREAM, 0), one = socket(AF_INET, SOCK_STREAM, 0), other;
	char bytes[8] = "";

	if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)&address, &length) ||
	    connect(one, (struct sockaddr *)&address, sizeof address))
		return 1;
	other = accept(listener, NULL, NULL);
	for (int i = 0; i < 20; i++)
		if (write(one, "line", 4) != 4 || read(other, bytes, 4) != 4 ||
		    write(other, bytes, 4) != 4 || read(one, bytes, 4) != 4)
			return 1;
	puts(bytes);
	return 0;
}

int main(int count, char **words)
{
	if (count == 1)
		return talk();
	if (refuse_reports())
		return 2;
	execv(words[1], (char *[]){ words[1], NULL });
	return 3;
}
