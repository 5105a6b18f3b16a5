/* Steps that limit a process: descriptors, memory, system calls, and access by others. */
#include "world.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>

/* limit what=nofile|as value=N how=setrlimit|setrlimit64|prlimit|prlimit64 way= */
static void do_limit(const struct step *step)
{
	__rlimit_resource_t what = is(step, "what", "as") ? RLIMIT_AS : RLIMIT_NOFILE;
	struct rlimit limit, old;
	enum way way = way_of(step);
	long result;

	getrlimit(what, &limit);
	limit.rlim_cur = (rlim_t)number_of(step, "value", 100);
	if (limit.rlim_cur > limit.rlim_max)
		limit.rlim_cur = limit.rlim_max;
	if (is(step, "how", "prlimit"))
		result = BY(way, prlimit(0, what, &limit, &old), SYS_prlimit64, 0L, (long)what,
			    &limit, &old);
	else if (is(step, "how", "prlimit64"))
		result = prlimit64(0, what, (struct rlimit64 *)&limit, NULL);
	else if (is(step, "how", "setrlimit64"))
		result = setrlimit64(what, (struct rlimit64 *)&limit);
	else
		result = BY(way, setrlimit(what, &limit), SYS_setrlimit, (long)what, &limit);
	note_result(result);
}

bool gave_up_calls;

/* restrict how=dumpable|privileges|filter|seccomp: forbids other processes' access, sets
 * PR_SET_NO_NEW_PRIVS, or installs a seccomp filter that allows all system calls. */
static void do_restrict(const struct step *step)
{
	struct sock_filter all = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog program = { 1, &all };
	enum way way = way_of(step);
	long result;

	if (is(step, "how", "dumpable"))
		result = BY(way, prctl(PR_SET_DUMPABLE, 0), SYS_prctl, (long)PR_SET_DUMPABLE, 0L, 0L,
			    0L, 0L);
	else if (is(step, "how", "filter"))
		result = BY(way, prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), SYS_prctl,
			    (long)PR_SET_SECCOMP, (long)SECCOMP_MODE_FILTER, &program, 0L, 0L);
	else if (is(step, "how", "seccomp"))
		result = BY(way == PLAIN ? SYSCALL : way, -1, SYS_seccomp,
			    (long)SECCOMP_SET_MODE_FILTER, 0L, &program);
	else
		result = BY(way, prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), SYS_prctl,
			    (long)PR_SET_NO_NEW_PRIVS, 1L, 0L, 0L, 0L);
	if (!result && (is(step, "how", "filter") || is(step, "how", "seccomp")))
		gave_up_calls = true;
	note_result(result);
}

const struct named of_limits[] = {
	{ "limit", do_limit }, { "restrict", do_restrict }, { NULL, NULL },
};
