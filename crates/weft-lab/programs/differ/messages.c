/* Calls with several messages, and all calls that send datagrams. */
#include "world.h"

enum { MANY = 8, ROOM = 4096 };

static _Thread_local char bytes[MANY * ROOM];

static int flags_of(const struct step *step)
{
	const char *text = text_of(step, "flags", "");

	return (strstr(text, "DONTWAIT") ? MSG_DONTWAIT : 0) |
	       (strstr(text, "NOSIGNAL") ? MSG_NOSIGNAL : 0) |
	       (strstr(text, "WAITFORONE") ? MSG_WAITFORONE : 0) |
	       (strstr(text, "WAITALL") ? MSG_WAITALL : 0) |
	       (strstr(text, "TRUNC") ? MSG_TRUNC : 0) | (strstr(text, "PEEK") ? MSG_PEEK : 0);
}

static int count_of(const struct step *step)
{
	long count = number_of(step, "count", 2);

	return count < 0 ? 0 : count > MANY ? MANY : (int)count;
}

static size_t length_of(const struct step *step)
{
	long length = number_of(step, "n", 10);

	return length < 0 ? 0 : length > ROOM ? ROOM : (size_t)length;
}

/* sendmany V [TO] n= count= flags= lost=1: messages of n, n + 1, ... bytes by sendmmsg. */
static void do_sendmany(const struct step *step)
{
	struct var *var = var_at(step, 0), target = *var;
	bool addressed = step->count > 3 && step->words[3][0] == 'v';
	struct var *to = addressed ? var_at(step, 1) : NULL;
	struct mmsghdr messages[MANY] = { 0 };
	struct iovec vectors[MANY];
	int count = count_of(step), flags = flags_of(step);
	size_t length = length_of(step), total = 0;
	long result;

	if (to) {
		target.out = to->in;
		target.out_way = to->in_way;
	}
	if (length + MANY > ROOM)
		length = ROOM - MANY;
	for (int i = 0; i < count; i++)
		total += length + (size_t)i;
	begin_send(&target, bytes, total);
	total = 0;
	for (int i = 0; i < count; i++) {
		vectors[i] = (struct iovec){ bytes + total, length + (size_t)i };
		total += length + (size_t)i;
		messages[i].msg_hdr.msg_iov = &vectors[i];
		messages[i].msg_hdr.msg_iovlen = 1;
		if (to) {
			messages[i].msg_hdr.msg_name = &to->address;
			messages[i].msg_hdr.msg_namelen = to->address_length;
		}
	}
	errno = 0;
	result = BY(way_of(step), sendmmsg(var->fd, messages, (unsigned)count, flags), SYS_sendmmsg,
		    var->fd, messages, (long)count, (long)flags);
	note_result(result);
	if (target.out < 0)
		return;
	for (int i = 0; i < result; i++) {
		note(" %u", messages[i].msg_len);
		if (!number_of(step, "lost", 0))
			end_send(&target, messages[i].msg_len);
	}
	world->conns[target.out].way[target.out_way].offered =
		world->conns[target.out].way[target.out_way].sent;
}

/* recvmany V n= count= flags= limit=MS: calls recvmmsg, with or without a time limit. */
static void do_recvmany(const struct step *step)
{
	struct var *var = var_at(step, 0);
	struct sockaddr_storage names[MANY];
	struct mmsghdr messages[MANY] = { 0 };
	struct iovec vectors[MANY];
	int count = count_of(step), flags = flags_of(step);
	size_t length = length_of(step);
	long milliseconds = number_of(step, "limit", -1), result;
	struct timespec limit = { milliseconds / 1000, milliseconds % 1000 * 1000000 };
	struct timespec *within = milliseconds < 0 ? NULL : &limit;
	struct var before = *var;

	if (!begin_receive(&before))
		return;
	for (int i = 0; i < count; i++) {
		vectors[i] = (struct iovec){ bytes + (size_t)i * ROOM, length };
		messages[i].msg_hdr = (struct msghdr){ .msg_name = &names[i],
						       .msg_namelen = sizeof names[i],
						       .msg_iov = &vectors[i],
						       .msg_iovlen = 1,
						       .msg_flags = -1 };
	}
	errno = 0;
	result = BY(way_of(step), recvmmsg(var->fd, messages, (unsigned)count, flags, within),
		    SYS_recvmmsg, var->fd, messages, (long)count, (long)flags, within);
	note_result(result);
	for (int i = 0; i < result; i++) {
		unsigned got = messages[i].msg_len;

		note(" %u,%x,%u", got, messages[i].msg_hdr.msg_flags & ~MSG_CMSG_CLOEXEC,
		     messages[i].msg_hdr.msg_namelen);
		if (flags & MSG_PEEK)
			continue;
		check_received(var, bytes + (size_t)i * ROOM, got > length ? (long)length : got,
			       false);
	}
	end_receive(&before);
}

/* sendto FROM TO n= call=sendto|sendmsg lost=1: sends a datagram to another socket. It is lost if
 * that socket is closed or connected to another one. */
static void do_sendto(const struct step *step)
{
	struct var *var = var_at(step, 0), *to = var_at(step, 1), target = *var;
	size_t length = length_of(step);
	struct iovec vector = { bytes, length };
	struct msghdr message = { .msg_name = &to->address,
				  .msg_namelen = to->address_length,
				  .msg_iov = &vector,
				  .msg_iovlen = 1 };
	int flags = flags_of(step);
	long result;

	target.out = to->in;
	target.out_way = to->in_way;
	begin_send(&target, bytes, length);
	errno = 0;
	if (is(step, "call", "sendmsg"))
		result = BY(way_of(step), sendmsg(var->fd, &message, flags), SYS_sendmsg, var->fd,
			    &message, (long)flags);
	else
		result = BY(way_of(step),
			    sendto(var->fd, bytes, length, flags, (struct sockaddr *)&to->address,
				   to->address_length),
			    SYS_sendto, var->fd, bytes, length, (long)flags, &to->address,
			    (long)to->address_length);
	note_result(result);
	end_send(&target, number_of(step, "lost", 0) ? -1 : result);
}

const struct named of_messages[] = {
	{ "sendmany", do_sendmany },
	{ "recvmany", do_recvmany },
	{ "sendto", do_sendto },
	{ NULL, NULL },
};
