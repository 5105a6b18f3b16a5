/* Processes that give up system calls or address space while they have connections. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "calls.h"

/* The program makes none of these calls afterwards. If a library makes one, the kernel kills it. */
static const int FORBIDDEN[] = {
	SYS_sendto,  SYS_recvfrom,   SYS_sendmsg,     SYS_recvmsg,  SYS_fcntl,	SYS_getsockopt,
	SYS_ppoll,   SYS_setsockopt, SYS_getsockname, SYS_mprotect, SYS_madvise, SYS_epoll_ctl,
	SYS_openat,  SYS_ioctl,	     SYS_epoll_pwait, SYS_gettid,   SYS_connect,
};
enum { FORBIDDEN_COUNT = sizeof FORBIDDEN / sizeof *FORBIDDEN };

/* Installs the filter by prctl(2), or by the system call's number. */
static void do_filter(struct end *end, const struct arguments *args)
{
	struct sock_filter filter[FORBIDDEN_COUNT + 3] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	};
	struct sock_fprog program = { FORBIDDEN_COUNT + 3, filter };

	for (int i = 0; i < FORBIDDEN_COUNT; i++)
		filter[i + 1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
							     FORBIDDEN[i], FORBIDDEN_COUNT - i, 0);
	filter[FORBIDDEN_COUNT + 1] =
		(struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	filter[FORBIDDEN_COUNT + 2] =
		(struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
	check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS");
	note(end, "filter_calls");
	note_result(end, args->flags
				 ? syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program)
				 : prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

static void do_watch(struct end *end, const struct arguments *args)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 7 };

	end->extra[0] = check(epoll_create1(0), "epoll_create1");
	note(end, "watch");
	note_result(end, epoll_ctl(end->extra[0], EPOLL_CTL_ADD, args->fd, &event));
}

static void do_wait_for_it(struct end *end, const struct arguments *args)
{
	struct epoll_event event = { 0 };

	note(end, "epoll_wait");
	note_result(end, epoll_wait(end->extra[0], &event, 1, args->value));
	note(end, " %d", (int)event.data.u64);
}

static void filter_calls(struct pair *pair, int by_number)
{
	if (pair->mode == THREADS)
		return;
	ON(pair->b, do_watch);
	ON(pair->a, do_send, .text = "before it");
	ON(pair->b, do_filter, .flags = by_number);
	ON(pair->b, do_wait_for_it, .value = 1000);
	ON(pair->b, do_poll, .flags = POLLIN, .value = 1000);
	ON(pair->b, do_read, .size = 6);
	ON(pair->b, do_wait_for_it, .value = 1000);
	ON(pair->b, do_read, .size = 100);
	ON(pair->b, do_poll, .flags = POLLIN, .value = 0);
	ON(pair->b, do_wait_for_it, .value = 0);
	for (int i = 0; i < 3; i++) {
		BEGIN(pair->b, do_wait_for_it, .value = 3000);
		ON(pair->a, do_send, .text = "after it");
		finish(pair->b);
		ON(pair->b, do_read, .size = 100);
		ON(pair->b, do_write, .text = "an answer");
		ON(pair->a, do_recv, .size = 100);
	}
	ON(pair->b, do_close);
	ON(pair->a, do_recv, .size = 100);
}

CASE(seccomp_by_prctl)
{
	filter_calls(pair, 0);
}

CASE(seccomp_by_number)
{
	filter_calls(pair, 1);
}

static void do_limit(struct end *end, const struct arguments *args)
{
	struct rlimit limit = { args->size, args->size };
	void *made;

	note(end, "setrlimit");
	note_result(end, setrlimit(RLIMIT_AS, &limit));
	made = mmap(NULL, args->size / 4, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	note(end, ", a quarter of it is %s", made == MAP_FAILED ? "not there" : "there");
}

CASE(address_space_limit)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	socklen_t length = sizeof address;
	int listener, client, served;

	ON(pair->b, do_limit, .size = 1 << 30);
	exchange(pair, 2);
	if (pair->mode != THREADS)
		return;
	/* Connections that the process makes after the filter. */
	listener = check(socket(AF_INET, SOCK_STREAM, 0), "socket");
	check(listen(listener, 9), "listen");
	getsockname(listener, (struct sockaddr *)&address, &length);
	for (int i = 0; i < 3; i++) {
		client = check(socket(AF_INET, SOCK_STREAM, 0), "socket");
		check(connect(client, (struct sockaddr *)&address, length), "connect");
		served = check(accept(listener, NULL, NULL), "accept");
		for (int k = 0; k < 3; k++) {
			ON(pair->a, do_send, .fd = client, .text = "ask");
			ON(pair->b, do_recv, .fd = served, .size = 100);
			ON(pair->b, do_send, .fd = served, .text = "answer");
			ON(pair->a, do_recv, .fd = client, .size = 100);
		}
	}
}
