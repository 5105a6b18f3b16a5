/*
 * refused WAYS PROGRAM ARGUMENT...: executes a program for which the kernel refuses ways of
 * reaching another process's memory, as a container's filter may.
 *
 * WAYS are names joined by commas: system calls, which fail with EPERM, and "proc": the program
 * runs where /proc is not mounted, which needs root.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct {
	const char *name;
	int number;
} CALLS[] = {
	{ "memfd_create", SYS_memfd_create },
	{ "pidfd_getfd", SYS_pidfd_getfd },
	{ "pidfd_open", SYS_pidfd_open },
	{ "process_vm_readv", SYS_process_vm_readv },
	{ "process_vm_writev", SYS_process_vm_writev },
	{ "userfaultfd", SYS_userfaultfd },
};

static int refuse_call(int number)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { sizeof code / sizeof *code, code };

	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

static int unmount_proc(void)
{
	return unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	       umount2("/proc", MNT_DETACH);
}

static int refuse(const char *way)
{
	if (!strcmp(way, "proc"))
		return unmount_proc();
	for (size_t i = 0; i < sizeof CALLS / sizeof *CALLS; i++)
		if (!strcmp(way, CALLS[i].name))
			return refuse_call(CALLS[i].number);
	return -1;
}

int main(int count, char **words)
{
	if (count < 3 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return 2;
	for (char *way = strtok(words[1], ","); way; way = strtok(NULL, ","))
		if (refuse(way)) {
			perror(way);
			return 2;
		}
	execvp(words[2], words + 2);
	return 3;
}
