/* io_uring without liburing, the kernel's asynchronous input and output, and POSIX's. */
#include "world.h"

#include <aio.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <sys/mman.h>

enum {
	ENTRIES = 2,
	/* Larger than the numbers that a program uses or closes. */
	RING_FROM = 700,
};

/* Makes a ring with a number that the program does not use: its descriptors must have the same
 * numbers on a kernel that refuses rings. */
static int set_up(struct io_uring_params *parameters)
{
	int low = (int)syscall(SYS_io_uring_setup, ENTRIES, parameters), high;

	if (low < 0)
		return -1;
	high = (int)raw(SYS_fcntl, low, F_DUPFD_CLOEXEC, RING_FROM, 0, 0, 0);
	raw(SYS_close, low, 0, 0, 0, 0, 0);
	return high;
}

/* Does one operation in a new ring. Returns false if rings are refused: the caller then makes the
 * plain call. */
bool uring_do(int opcode, int fd, const void *address, unsigned length, uint64_t offset,
	      unsigned flags, long *result)
{
	struct io_uring_params parameters = { 0 };
	struct io_uring_sqe *entry;
	struct io_uring_cqe *completion;
	char *queue = MAP_FAILED, *entries = MAP_FAILED;
	size_t queue_bytes, entries_bytes;
	int ring = set_up(&parameters);
	unsigned *tail;
	long entered;
	bool done = false;

	if (ring < 0)
		return false;
	queue_bytes = parameters.cq_off.cqes + parameters.cq_entries * sizeof *completion;
	if (queue_bytes < parameters.sq_off.array + parameters.sq_entries * sizeof(unsigned))
		queue_bytes = parameters.sq_off.array + parameters.sq_entries * sizeof(unsigned);
	entries_bytes = parameters.sq_entries * sizeof *entry;
	queue = mmap(NULL, queue_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring,
		     IORING_OFF_SQ_RING);
	entries = mmap(NULL, entries_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring,
		       IORING_OFF_SQES);
	if (queue == MAP_FAILED || entries == MAP_FAILED)
		goto out;
	entry = (struct io_uring_sqe *)entries;
	*entry = (struct io_uring_sqe){ .opcode = (uint8_t)opcode,
					.fd = fd,
					.addr = (uint64_t)address,
					.len = length,
					.off = offset,
					.msg_flags = flags };
	((unsigned *)(queue + parameters.sq_off.array))[0] = 0;
	tail = (unsigned *)(queue + parameters.sq_off.tail);
	__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
	entered = syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0);
	if (entered < 0 && errno != EINTR)
		goto out;
	done = true;
	if (entered == 1 &&
	    __atomic_load_n((unsigned *)(queue + parameters.cq_off.tail), __ATOMIC_ACQUIRE) == 0) {
		/* The operation was submitted, and a signal came before it completed. */
		syscall(SYS_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0);
	}
	if (__atomic_load_n((unsigned *)(queue + parameters.cq_off.tail), __ATOMIC_ACQUIRE)) {
		completion = (struct io_uring_cqe *)(queue + parameters.cq_off.cqes);
		*result = completion->res;
	} else {
		*result = -EINTR;
	}
	if (*result < 0) {
		errno = (int)-*result;
		*result = -1;
	}
out:
	if (queue != MAP_FAILED)
		munmap(queue, queue_bytes);
	if (entries != MAP_FAILED)
		munmap(entries, entries_bytes);
	raw(SYS_close, ring, 0, 0, 0, 0, 0);
	return done;
}

/* Does one operation of the kernel's own asynchronous input and output, and waits until it is
 * complete, for as long as `limit` (NULL: for ever). Returns false after that time, or with an error
 * that is no result of the operation. */
static bool submitted(struct iocb *block, struct timespec *limit, long *result)
{
	struct iocb *blocks[] = { block };
	struct io_event event = { 0 };
	aio_context_t context = 0;
	bool done = false;

	*result = -1;
	if (syscall(SYS_io_setup, 1L, &context))
		return false;
	*result = syscall(SYS_io_submit, context, 1L, blocks);
	if (*result == 1) {
		*result = 0;
		done = syscall(SYS_io_getevents, context, 1L, 1L, &event, limit) == 1;
	}
	raw(SYS_io_destroy, (long)context, 0, 0, 0, 0, 0);
	if (!done)
		return false;
	*result = event.res;
	if (*result < 0) {
		errno = (int)-*result;
		*result = -1;
	}
	return true;
}

/* Reads or writes in this way. `operation` is one of linux/aio_abi.h, and says what `place` and
 * `length` are. */
long submitted_transfer(int operation, int fd, void *place, size_t length)
{
	struct iocb block = { .aio_lio_opcode = (uint16_t)operation,
			      .aio_fildes = (uint32_t)fd,
			      .aio_buf = (uint64_t)place,
			      .aio_nbytes = length };
	long result;

	submitted(&block, NULL, &result);
	return result;
}

/* Polls one descriptor in this way. */
long submitted_poll(struct pollfd *polled, int timeout)
{
	struct timespec limit = { timeout / 1000, timeout % 1000 * 1000000L };
	struct iocb block = { .aio_lio_opcode = IOCB_CMD_POLL,
			      .aio_fildes = (uint32_t)polled->fd,
			      .aio_buf = (uint16_t)polled->events };
	long result;

	if (!submitted(&block, timeout < 0 ? NULL : &limit, &result) || result < 0)
		return result;
	polled->revents = (short)result;
	return 1;
}

long listed_transfer(bool write, int fd, void *bytes, size_t length)
{
	struct aiocb request = { .aio_fildes = fd,
				 .aio_buf = bytes,
				 .aio_nbytes = length,
				 .aio_lio_opcode = write ? LIO_WRITE : LIO_READ };
	struct aiocb *list[] = { &request };
	int error;

	if (lio_listio(LIO_WAIT, list, 1, NULL) && errno != EIO)
		return -1;
	error = aio_error(&request);
	if (error) {
		errno = error;
		return -1;
	}
	return aio_return(&request);
}

long aio_transfer(bool write, int fd, void *bytes, size_t length)
{
	struct aiocb request = { .aio_fildes = fd, .aio_buf = bytes, .aio_nbytes = length };
	const struct aiocb *list[] = { &request };
	int error;

	if (write ? aio_write(&request) : aio_read(&request))
		return -1;
	while ((error = aio_error(&request)) == EINPROGRESS)
		aio_suspend(list, 1, NULL);
	if (error) {
		errno = error;
		return -1;
	}
	return aio_return(&request);
}
