/* Each direction of each connection carries distinct bytes, so that the receiver detects bytes that
 * are lost, repeated, out of order or from another connection. */
#include "world.h"

static const char LETTERS[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_";

int new_conn(bool packets)
{
	int index = world->conns_used % CONNS;
	struct conn *conn = &world->conns[index];

	memset(conn, 0, sizeof *conn);
	conn->packets = packets;
	world->conns_used++;
	return index;
}

void be_file(struct var *var, int fd, enum kind kind)
{
	memset(var, 0, sizeof *var);
	var->fd = fd;
	var->kind = kind;
	var->in = var->out = -1;
}

void be_stream(struct var *var, int fd, enum kind kind, int conn, int end)
{
	be_file(var, fd, kind);
	var->in = var->out = (int16_t)conn;
	var->out_way = (uint8_t)end;
	var->in_way = (uint8_t)!end;
}

char pattern(int conn, int way, uint64_t position)
{
	uint64_t word = (position + 1) * 0x9e3779b97f4a7c15;

	word ^= (uint64_t)(conn * 2 + way + 1) * 0xbf58476d1ce4e5b9;
	word = (word ^ word >> 31) * 0x94d049bb133111eb;
	return LETTERS[word >> 58];
}

/* Returns the byte of a connection at a position. */
char byte_of(int conn, int way, uint64_t position)
{
	const struct direction *direction = &world->conns[conn].way[way];

	for (uint32_t fill = direction->fills; fill > 0; fill--)
		if (position >= direction->filled[fill - 1])
			return pattern(conn, way,
				       ((uint64_t)fill << 32) + position -
					       direction->filled[fill - 1]);
	return pattern(conn, way, position);
}

/* Notes that the connection is full at its present position. */
void note_filled(struct var *var)
{
	struct direction *way;

	if (var->out < 0)
		return;
	way = &world->conns[var->out].way[var->out_way];
	if (way->fills < FILLS)
		way->filled[way->fills++] = way->sent;
}

void begin_send(struct var *var, char *bytes, size_t length)
{
	struct direction *way;

	if (var->out < 0) {
		memset(bytes, '.', length);
		return;
	}
	way = &world->conns[var->out].way[var->out_way];
	for (size_t i = 0; i < length; i++)
		bytes[i] = byte_of(var->out, var->out_way, way->sent + i);
	way->offered = way->sent + length;
}

void end_send(struct var *var, long sent)
{
	struct conn *conn;

	if (var->out < 0)
		return;
	conn = &world->conns[var->out];
	if (sent > 0 || (sent == 0 && conn->packets)) {
		conn->way[var->out_way].sent += (uint64_t)sent;
		if (conn->packets)
			conn->lengths[conn->last++ % DATAGRAMS] = (uint32_t)sent;
	}
	conn->way[var->out_way].offered = conn->way[var->out_way].sent;
}

/* Finds the direction and the position to which wrong bytes belong, and notes them. */
static void tell_origin(const char *bytes, long count)
{
	int used = world->conns_used < CONNS ? world->conns_used : CONNS;

	if (count < 6)
		return;
	for (int conn = 0; conn < used; conn++)
		for (int way = 0; way < 2; way++)
			for (uint64_t at = 0; at < world->conns[conn].way[way].offered; at++) {
				int same = 0;

				while (same < 6 && bytes[same] == byte_of(conn, way, at + same))
					same++;
				if (same == 6) {
					note("(of connection %d.%d, at %lu)", conn, way, at);
					return;
				}
			}
}

bool begin_receive(struct var *var)
{
	struct direction *way;

	if (var->in < 0)
		return true;
	way = &world->conns[var->in].way[var->in_way];
	if (way->receiving) {
		note(" = another receives");
		return false;
	}
	way->receiving = true;
	return true;
}

void end_receive(struct var *var)
{
	if (var->in >= 0)
		world->conns[var->in].way[var->in_way].receiving = false;
}

bool check_received(struct var *var, const char *bytes, long got, bool peeked)
{
	struct conn *conn;
	struct direction *way;
	uint64_t from;
	uint32_t length = 0;
	bool good = true;

	if (var->in < 0 || got < 0)
		return true;
	conn = &world->conns[var->in];
	way = &conn->way[var->in_way];
	from = way->received;
	if (conn->packets)
		length = conn->lengths[conn->first % DATAGRAMS];
	for (long i = 0; good && i < got; i++)
		if (bytes[i] != byte_of(var->in, var->in_way, from + (uint64_t)i)) {
			note(" FOREIGN at %ld of connection %d.%d, %lu", i, var->in, var->in_way,
			     from);
			tell_origin(bytes + i, got - i);
			good = false;
		}
	if (good && from + (uint64_t)got > way->offered) {
		note(" FOREIGN: more than was sent");
		good = false;
	}
	if (peeked)
		return good;
	if (conn->packets && conn->first != conn->last)
		conn->first++;
	way->received += conn->packets ? length : (uint64_t)got;
	return good;
}
