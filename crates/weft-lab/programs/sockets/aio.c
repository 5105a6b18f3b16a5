/* POSIX asynchronous I/O: the C library's threads read and write. */
#include <aio.h>
#include <signal.h>

#include "calls.h"

static long complete(struct aiocb *block)
{
	const struct aiocb *list[] = { block };

	while (aio_error(block) == EINPROGRESS)
		aio_suspend(list, 1, NULL);
	errno = aio_error(block);
	return aio_return(block);
}

static void do_aio_write(struct end *end, const struct arguments *args)
{
	struct aiocb block = { .aio_fildes = args->fd,
			       .aio_buf = (void *)args->text,
			       .aio_nbytes = strlen(args->text) };

	note(end, "aio_write %d", aio_write(&block));
	note_result(end, complete(&block));
}

static void do_aio_read(struct end *end, const struct arguments *args)
{
	char bytes[100];
	struct aiocb block = { .aio_fildes = args->fd, .aio_buf = bytes, .aio_nbytes = args->size };
	long got;

	block.aio_sigevent.sigev_notify = args->flags;
	block.aio_sigevent.sigev_signo = SIGUSR1;
	note(end, "aio_read %d", aio_read(&block));
	got = complete(&block);
	sleep_ms(args->flags == SIGEV_SIGNAL ? 20 : 0);
	note_result(end, got);
	note_data(end, bytes, got);
}

CASE(aio_unread)
{
	ON(pair->a, do_send, .text = "in memory");
	ON(pair->b, do_aio_read, .size = 3, .flags = SIGEV_NONE);
	ON(pair->b, do_aio_read, .size = 100, .flags = SIGEV_NONE);
	ON(pair->a, do_send, .text = "and more");
	ON(pair->b, do_aio_read, .size = 100, .flags = SIGEV_NONE);
	exchange(pair, 2);
}

CASE(aio_sleeping)
{
	BEGIN(pair->b, do_aio_read, .size = 100, .flags = SIGEV_NONE);
	ON(pair->a, do_aio_write, .text = "to a sleeper");
	finish(pair->b);
	exchange(pair, 2);
	ON(pair->a, do_close);
	ON(pair->b, do_aio_read, .size = 100, .flags = SIGEV_NONE);
}

static volatile int notified_by_signal, notified_by_thread;

static void on_notice(int number __attribute__((unused)), siginfo_t *info,
		      void *context __attribute__((unused)))
{
	notified_by_signal = info->si_code == SI_ASYNCIO ? info->si_value.sival_int : -1;
}

static void in_thread(union sigval value)
{
	notified_by_thread = value.sival_int;
}

CASE(aio_notices)
{
	struct sigaction action = { .sa_sigaction = on_notice, .sa_flags = SA_SIGINFO };
	char bytes[2][10];
	struct aiocb blocks[2];
	struct aiocb *list[3] = { &blocks[0], NULL, &blocks[1] };
	int fd = pair->a->fd;

	check(sigaction(SIGUSR2, &action, NULL), "sigaction");
	memset(blocks, 0, sizeof blocks);
	for (int i = 0; i < 2; i++) {
		blocks[i].aio_fildes = fd;
		blocks[i].aio_buf = bytes[i];
		blocks[i].aio_nbytes = 4;
		blocks[i].aio_lio_opcode = LIO_READ;
		blocks[i].aio_sigevent.sigev_notify = i ? SIGEV_THREAD : SIGEV_SIGNAL;
	}
	blocks[0].aio_sigevent.sigev_signo = SIGUSR2;
	blocks[0].aio_sigevent.sigev_value.sival_int = 17;
	blocks[1].aio_sigevent.sigev_notify_function = in_thread;
	blocks[1].aio_sigevent.sigev_value.sival_int = 18;
	ON(pair->b, do_send, .text = "one two ");
	say("lio_listio = %d", lio_listio(LIO_NOWAIT, list, 3, NULL));
	for (int i = 0; i < 2; i++) {
		long got = complete(&blocks[i]);

		say("%ld %.4s", got, bytes[i]);
	}
	for (int i = 0; i < 100 && !(notified_by_signal && notified_by_thread); i++)
		sleep_ms(10);
	say("notified %d %d", notified_by_signal, notified_by_thread);
	exchange(pair, 2);
}
