/* Descriptors for which programs wait besides sockets: events, timers, signals, processes and
 * inotify instances. */
#include "world.h"

#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/pidfd.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>

/* other V how=event|timer|signal|process|inotify from=ACTOR */
static void do_other(const struct step *step)
{
	const char *how = text_of(step, "how", "event");
	sigset_t set;
	int fd;

	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN);
	if (!strcmp(how, "timer")) {
		fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
	} else if (!strcmp(how, "signal")) {
		sigprocmask(SIG_BLOCK, &set, NULL);
		fd = signalfd(-1, &set, SFD_NONBLOCK);
	} else if (!strcmp(how, "process")) {
		fd = pidfd_open(world->actors[number_of(step, "from", 0) % ACTORS].pid, 0);
	} else if (!strcmp(how, "inotify")) {
		fd = inotify_init1(IN_NONBLOCK);
		inotify_add_watch(fd, world->folder, IN_CREATE);
	} else {
		fd = eventfd(0, EFD_NONBLOCK);
	}
	be_file(var_at(step, 0), fd, OTHER);
	note_result(fd);
}

/* excite V how=: makes V readable. */
static void do_excite(const struct step *step)
{
	int fd = var_at(step, 0)->fd;
	const char *how = text_of(step, "how", "event");
	struct itimerspec soon = { .it_value = { 0, 1 } };
	uint64_t one = 1;
	long result = 0;
	char path[240];

	if (!strcmp(how, "timer")) {
		result = timerfd_settime(fd, 0, &soon, NULL);
		usleep(1000);
	} else if (!strcmp(how, "signal")) {
		result = raw(SYS_tgkill, world->actors[own].pid, world->actors[own].tid, SIGRTMIN,
			     0, 0, 0);
	} else if (!strcmp(how, "inotify")) {
		snprintf(path, sizeof path, "%s/noticed", world->folder);
		close(open(path, O_CREAT | O_RDWR, 0666));
		unlink(path);
	} else {
		result = write(fd, &one, sizeof one);
	}
	note_result(result);
}

/* calm V: reads from V, so that it is not readable any more. */
static void do_calm(const struct step *step)
{
	char bytes[1024];

	note_result(read(var_at(step, 0)->fd, bytes, sizeof bytes));
}

const struct named of_others[] = {
	{ "other", do_other }, { "excite", do_excite }, { "calm", do_calm }, { NULL, NULL },
};
