/*
 * Compares registered memory with a model while a peer reads and writes it.
 *
 *   regions run SEED STEPS PORT
 *
 * A random program maps, unmaps, moves, grows, empties and registers memory, trims its heap, forks
 * and has threads. It keeps registrations of memory that it has unmapped, as caches do. A second
 * process (this program again) reads and writes the regions on request. The model is the
 * behaviour of hardware: a region means the pages that were registered, even if its addresses are
 * mapped to other pages later; new memory is zero; a child has a copy.
 *
 * Weft accesses a page that it has not remapped as shared by its address. The program uses such a
 * part of a region only as long as the same page is at that address. It prints
 *
 *   pages registered: N shared: N
 *   checks: N
 *
 * and exits with status 0, or prints what is wrong and the last steps.
 */
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lab.h"

enum {
	PAGE = 4096,
	/* Pages of the area that is mapped and unmapped. The heap's pages have the next numbers. */
	MAPPED = 48,
	HEAP = 16,
	SLOTS = MAPPED + HEAP,
	OBJECTS = 4096,
	REGIONS = 12,
	SPAN_MAX = 10,
	BUFFER = SPAN_MAX * PAGE,
	LOG_LINES = 40,
	/* Bytes of a region that the peer writes again and again. */
	BURST = 256,
};

extern char **environ;

/* The expected content of a page. */
struct object {
	int users;
	/* mremap has added the page behind a shared segment: the model takes it for private. */
	bool odd;
	unsigned char bytes[PAGE];
};

struct held {
	struct object *object;
	int slot;
	bool shared;
};

struct region {
	struct ibv_mr *mr;
	uint64_t address;
	size_t first, length;
	int access, count;
	struct held pages[SPAN_MAX];
};

enum order { STOP, READ, WRITE, BURST_START, BURST_END };

/* A request to the peer. */
struct order_to_peer {
	enum order order;
	uint64_t address;
	uint32_t key, length;
};

/* The peer's memory, as both sides know it. */
struct offer {
	uint64_t address;
	uint32_t key;
} __attribute__((packed));

static struct object pool[OBJECTS];
static struct object *slots[SLOTS];
/* Slots at whose addresses another thread, such as one of Weft's, has mapped memory. */
static int lost[MAPPED];
static struct region regions[REGIONS];
static char *arena, *heap;
static int heap_pages, peer_socket;
static unsigned char *buffer;
static struct offer peer_buffer;
static struct rdma_cm_id *id;
static struct ibv_cq *cq;
static struct ibv_pd *pd;
static uint64_t random_state;
static char history[LOG_LINES][160];
static long step, checks, pages_registered, pages_shared;
static pthread_t thread;
static bool has_thread;
static atomic_bool thread_ends;
static struct region *burst;
static size_t burst_offset;

/* ---- Reports ---- */

__attribute__((format(printf, 1, 2))) static void note(const char *format, ...)
{
	va_list arguments;
	char *line = history[step % LOG_LINES];
	size_t used = strlen(line);

	va_start(arguments, format);
	vsnprintf(line + used, sizeof history[0] - used, format, arguments);
	va_end(arguments);
}

__attribute__((noreturn)) static void wrong(const char *what)
{
	for (long line = step >= LOG_LINES ? step - LOG_LINES + 1 : 0; line <= step; line++)
		fprintf(stderr, "%ld: %s\n", line, history[line % LOG_LINES]);
	die("DEFECT: step %ld: %s", step, what);
}

static uint32_t below(uint32_t limit)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (random_state >> 20) % limit;
}

static void scramble(unsigned char *bytes, size_t length)
{
	for (size_t i = 0; i < length; i++)
		bytes[i] = below(256);
}

/* ---- The model ---- */

static struct object *fresh(void)
{
	static int next;

	for (int tries = 0; tries < OBJECTS; tries++) {
		struct object *object = &pool[next++ % OBJECTS];

		if (object->users)
			continue;
		memset(object, 0, sizeof *object);
		return object;
	}
	die("no objects left");
}

static void put(int slot, struct object *object)
{
	if (slots[slot])
		slots[slot]->users--;
	slots[slot] = object;
	if (object)
		object->users++;
}

static char *address_of(int slot)
{
	return slot < MAPPED ? arena + (size_t)slot * PAGE : heap + (size_t)(slot - MAPPED) * PAGE;
}

/* Returns the end of the area to which a slot belongs. */
static int area_end(int slot)
{
	return slot < MAPPED ? MAPPED : MAPPED + heap_pages;
}

static void fresh_pages(int slot, int count)
{
	for (int i = 0; i < count; i++)
		put(slot + i, fresh());
}

static void check_memory(void)
{
	for (int slot = 0; slot < SLOTS; slot++) {
		if (!slots[slot] || !memcmp(address_of(slot), slots[slot]->bytes, PAGE))
			continue;
		note(" [page %d]", slot);
		wrong("the program's memory is not what it should be");
	}
	checks++;
}

/* Selects a random run of mapped pages. Returns 0 if the random slot is not mapped. */
static int some_pages(int *slot, int max)
{
	int start = below(SLOTS), count = 0, wanted = 1 + below(max);

	for (; start + count < area_end(start) && slots[start + count] && count < wanted; count++)
		;
	*slot = start;
	return count;
}

/* Returns whether the slots belong to one mapping. */
static bool is_one_mapping(int slot, int count)
{
	uintptr_t start = (uintptr_t)address_of(slot), end = start + (size_t)count * PAGE;
	FILE *maps = check_pointer(fopen("/proc/self/maps", "re"), "/proc/self/maps");
	unsigned long first, last;
	bool found = false;
	char line[512];

	while (!found && fgets(line, sizeof line, maps))
		if (sscanf(line, "%lx-%lx", &first, &last) == 2)
			found = first <= start && end <= last;
	fclose(maps);
	return found;
}

/* Finds out for each page whether it belongs to a shared segment. */
static void look_for_segments(int slot, int count, bool *are)
{
	FILE *maps = check_pointer(fopen("/proc/self/maps", "re"), "/proc/self/maps");
	unsigned long first, last;
	char line[512];

	memset(are, 0, count * sizeof *are);
	while (fgets(line, sizeof line, maps)) {
		if (sscanf(line, "%lx-%lx", &first, &last) != 2 || !strstr(line, "memfd:weft-region"))
			continue;
		for (int i = 0; i < count; i++) {
			uintptr_t at = (uintptr_t)address_of(slot + i);

			are[i] |= first <= at && at < last;
		}
	}
	fclose(maps);
}

/* ---- The peer ---- */

static void post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, struct ibv_sge sge,
		 uint64_t address, uint32_t key)
{
	struct ibv_send_wr request = {
		.sg_list = &sge, .num_sge = 1, .opcode = opcode,
		.wr.rdma = { .remote_addr = address, .rkey = key },
	};
	struct ibv_send_wr *bad;
	struct ibv_wc completion;
	int count;

	check(ibv_post_send(qp, &request, &bad), "ibv_post_send");
	while (!(count = ibv_poll_cq(cq, 1, &completion)))
		;
	if (count < 0)
		die("ibv_poll_cq failed");
	if (completion.status != IBV_WC_SUCCESS)
		wrong(ibv_wc_status_str(completion.status));
}

static void make_queue_pair(void)
{
	struct ibv_qp_init_attr attributes = {
		.qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 16, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	pd = check_pointer(ibv_alloc_pd(id->verbs), "ibv_alloc_pd");
	cq = check_pointer(ibv_create_cq(id->verbs, 16, NULL, NULL, 0), "ibv_create_cq");
	attributes.send_cq = attributes.recv_cq = cq;
	check(rdma_create_qp(id, pd, &attributes), "rdma_create_qp");
}

static void connect_peer(const char *port)
{
	struct rdma_event_channel *channel =
		check_pointer(rdma_create_event_channel(), "rdma_create_event_channel");
	struct rdma_conn_param parameters = connection_parameters();
	struct ibv_mr *mr;

	id = route_to(channel, "127.0.0.1", port);
	make_queue_pair();
	mr = check_pointer(ibv_reg_mr(pd, buffer, BUFFER, IBV_ACCESS_LOCAL_WRITE |
				      IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE),
			   "ibv_reg_mr");
	peer_buffer = (struct offer){ (uintptr_t)buffer, mr->lkey };
	parameters.private_data = &peer_buffer;
	parameters.private_data_len = sizeof peer_buffer;
	check(rdma_connect(id, &parameters), "rdma_connect");
	expect_event(channel, RDMA_CM_EVENT_ESTABLISHED);
}

static struct ibv_sge in_buffer(const struct order_to_peer *order)
{
	return (struct ibv_sge){ peer_buffer.address, order->length, peer_buffer.key };
}

/* Writes the same bytes again and again, and reads them back, until the next order comes. */
static void write_and_read(const struct order_to_peer *order)
{
	struct ibv_sge sge = in_buffer(order);
	struct pollfd next = { .fd = peer_socket, .events = POLLIN };
	unsigned char bytes[BURST];

	memcpy(bytes, buffer, order->length);
	do {
		post(id->qp, IBV_WR_RDMA_WRITE, sge, order->address, order->key);
		memset(buffer, 0, order->length);
		post(id->qp, IBV_WR_RDMA_READ, sge, order->address, order->key);
		if (memcmp(buffer, bytes, order->length))
			die("DEFECT: the peer reads other bytes than it has written");
	} while (!poll(&next, 1, 0));
}

static int peer(const char *port, const char *socket_number, const char *memory)
{
	struct order_to_peer order;

	peer_socket = atoi(socket_number);
	buffer = mmap(NULL, BUFFER, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(memory), 0);
	if (buffer == MAP_FAILED)
		die("mmap: %s", strerror(errno));
	connect_peer(port);
	while (read(peer_socket, &order, sizeof order) == sizeof order && order.order != STOP) {
		if (order.order == READ)
			post(id->qp, IBV_WR_RDMA_READ, in_buffer(&order), order.address, order.key);
		else if (order.order == WRITE)
			post(id->qp, IBV_WR_RDMA_WRITE, in_buffer(&order), order.address, order.key);
		else if (order.order == BURST_START)
			write_and_read(&order);
		/* BURST_END only needs an answer. */
		if (order.order != BURST_START &&
		    write(peer_socket, "", 1) != 1)
			die("write: %s", strerror(errno));
	}
	return 0;
}

static void await_peer(void)
{
	char answer;

	if (read(peer_socket, &answer, 1) != 1)
		wrong("the peer is gone");
}

static void tell_peer(enum order order, uint64_t address, uint32_t key, size_t length)
{
	struct order_to_peer message = { order, address, key, length };

	if (write(peer_socket, &message, sizeof message) != sizeof message)
		wrong("the peer is gone");
}

static void accept_peer(const char *program, const char *port)
{
	struct rdma_event_channel *channel =
		check_pointer(rdma_create_event_channel(), "rdma_create_event_channel");
	struct rdma_cm_id *listener = listen_on(channel, port);
	int memory = memfd_create("buffer", 0), pair[2];
	char socket_number[16], memory_number[16];
	char *arguments[] = { (char *)program, "peer", (char *)port, socket_number, memory_number,
			      NULL };
	struct rdma_conn_param parameters = connection_parameters();
	struct rdma_cm_event *event;
	pid_t child;

	check(ftruncate(memory, BUFFER), "ftruncate");
	buffer = mmap(NULL, BUFFER, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	if (buffer == MAP_FAILED)
		die("mmap: %s", strerror(errno));
	check(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), "socketpair");
	check(fcntl(pair[0], F_SETFD, FD_CLOEXEC), "fcntl");
	snprintf(socket_number, sizeof socket_number, "%d", pair[1]);
	snprintf(memory_number, sizeof memory_number, "%d", memory);
	check(posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ), "posix_spawn");
	close(pair[1]);
	peer_socket = pair[0];
	check(rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
	if (event->event != RDMA_CM_EVENT_CONNECT_REQUEST)
		die("event %s", rdma_event_str(event->event));
	id = event->id;
	memcpy(&peer_buffer, event->param.conn.private_data, sizeof peer_buffer);
	check(rdma_ack_cm_event(event), "rdma_ack_cm_event");
	make_queue_pair();
	check(rdma_accept(id, &parameters), "rdma_accept");
	expect_event(channel, RDMA_CM_EVENT_ESTABLISHED);
	check(rdma_destroy_id(listener), "rdma_destroy_id");
}

/* ---- Changes of the program's memory ---- */

/*
 * Reserves the addresses of unmapped or moved pages for this program. Other threads of the process,
 * such as Weft's, may already have mapped memory there, which they keep.
 */
static void reserve(int slot, int count)
{
	for (int i = slot; i < slot + count; i++) {
		void *kept = mmap(address_of(i), PAGE, PROT_NONE,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

		if (kept == MAP_FAILED && errno != EEXIST)
			wrong("mmap of nothing");
		lost[i] = kept == MAP_FAILED;
	}
}

/* Returns whether no other thread has mapped memory at the addresses of these slots. */
static int are_ours(int slot, int count)
{
	for (int i = slot; i < slot + count; i++)
		if (lost[i])
			return 0;
	return 1;
}

static void map_pages(void)
{
	int slot = below(MAPPED), count = 1 + below(SPAN_MAX);
	void *mapped;

	if (slot + count > MAPPED)
		count = MAPPED - slot;
	if (!are_ours(slot, count))
		return;
	note("map %d+%d", slot, count);
	mapped = mmap(address_of(slot), (size_t)count * PAGE, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	if (mapped == MAP_FAILED)
		wrong("mmap");
	fresh_pages(slot, count);
}

static void unmap_pages(void)
{
	int slot, count = some_pages(&slot, SPAN_MAX);

	if (!count || slot >= MAPPED)
		return;
	note("unmap %d+%d", slot, count);
	if (munmap(address_of(slot), (size_t)count * PAGE))
		wrong("munmap");
	reserve(slot, count);
	for (int i = 0; i < count; i++)
		put(slot + i, NULL);
}

static void move_pages(void)
{
	int slot, count = some_pages(&slot, SPAN_MAX), to = below(MAPPED);
	size_t length = (size_t)count * PAGE;

	if (!count || slot >= MAPPED || to + count > MAPPED ||
	    (to < slot + count && slot < to + count) || !is_one_mapping(slot, count) ||
	    !are_ours(to, count))
		return;
	note("move %d+%d to %d", slot, count, to);
	if (mremap(address_of(slot), length, length, MREMAP_MAYMOVE | MREMAP_FIXED,
		   address_of(to)) == MAP_FAILED)
		wrong("mremap");
	reserve(slot, count);
	for (int i = 0; i < count; i++) {
		put(to + i, slots[slot + i]);
		put(slot + i, NULL);
	}
}

/* Maps two pages, registers them, and grows them with mremap, which moves them. */
static void grow_pages(void)
{
	int from = below(MAPPED - 2), to = below(MAPPED - 4), extra = 1 + below(2);
	struct ibv_mr *mr;

	if ((to < from + 2 && from < to + 2 + extra) || !are_ours(from, 2) ||
	    !are_ours(to, 2 + extra))
		return;
	note("grow 2 pages at %d to %d at %d", from, 2 + extra, to);
	if (mmap(address_of(from), 2 * PAGE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
		wrong("mmap");
	fresh_pages(from, 2);
	mr = check_pointer(ibv_reg_mr(pd, address_of(from), 2 * PAGE, IBV_ACCESS_REMOTE_READ),
			   "ibv_reg_mr");
	scramble(slots[from]->bytes, PAGE);
	memcpy(address_of(from), slots[from]->bytes, PAGE);
	if (mremap(address_of(from), 2 * PAGE, (2 + extra) * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED,
		   address_of(to)) == MAP_FAILED)
		wrong("mremap");
	reserve(from, 2);
	for (int i = 0; i < 2 + extra; i++) {
		put(to + i, i < 2 ? slots[from + i] : fresh());
		slots[to + i]->odd |= i >= 2;
	}
	put(from, NULL);
	put(from + 1, NULL);
	check(ibv_dereg_mr(mr), "ibv_dereg_mr");
}

static void empty_pages(void)
{
	int slot, count = some_pages(&slot, SPAN_MAX);

	if (!count)
		return;
	note("empty %d+%d", slot, count);
	if (madvise(address_of(slot), (size_t)count * PAGE, MADV_DONTNEED))
		wrong("madvise");
	/* Emptied pages are zero, also those that mremap has added to a segment. */
	fresh_pages(slot, count);
}

static void change_heap(void)
{
	int wanted = below(HEAP + 1);

	note("heap %d to %d", heap_pages, wanted);
	if (sbrk((intptr_t)(wanted - heap_pages) * PAGE) == (void *)-1)
		wrong("sbrk");
	for (; heap_pages > wanted; heap_pages--)
		put(MAPPED + heap_pages - 1, NULL);
	for (; heap_pages < wanted; heap_pages++)
		put(MAPPED + heap_pages, fresh());
}

static bool is_in_burst(const struct object *object)
{
	for (int i = 0; burst && i < burst->count; i++)
		if (burst->pages[i].object == object)
			return true;
	return false;
}

static void write_memory(void)
{
	int slot, count = some_pages(&slot, SPAN_MAX);

	for (int i = 0; i < count; i++) {
		size_t offset = below(PAGE), length = 1 + below(PAGE - offset);

		if (is_in_burst(slots[slot + i]))
			continue;
		scramble(slots[slot + i]->bytes + offset, length);
		memcpy(address_of(slot + i) + offset, slots[slot + i]->bytes + offset, length);
	}
	note("write %d+%d", slot, count);
}

static void in_child(int go)
{
	char answer;

	if (read(go, &answer, 1) != 1)
		_exit(1);
	for (int slot = 0; slot < SLOTS; slot++) {
		/* The peer writes to these pages meanwhile, so their content is not known. */
		if (!slots[slot] || is_in_burst(slots[slot]))
			continue;
		if (memcmp(address_of(slot), slots[slot]->bytes, PAGE)) {
			fprintf(stderr, "the child's page %d\n", slot);
			_exit(2);
		}
	}
	for (int slot = 0; slot < SLOTS; slot++)
		if (slots[slot])
			memset(address_of(slot), 0x5a, PAGE);
	_exit(0);
}

static void fork_child(void)
{
	int go[2], status;
	pid_t child;

	note("fork");
	check(pipe(go), "pipe");
	child = fork();
	if (child < 0)
		wrong("fork");
	if (!child)
		in_child(go[0]);
	/* The child must not see these writes, so they do not change its model. */
	for (int slot = 0; slot < SLOTS; slot++) {
		if (!slots[slot] || is_in_burst(slots[slot]))
			continue;
		slots[slot]->bytes[0] ^= 1;
		address_of(slot)[0] = slots[slot]->bytes[0];
	}
	if (write(go[1], "", 1) != 1 || waitpid(child, &status, 0) != child)
		wrong("the child");
	close(go[0]);
	close(go[1]);
	if (status)
		wrong("a child does not have the memory that its parent had");
}

static void *idle(void *nothing)
{
	while (!thread_ends)
		usleep(100);
	return nothing;
}

static void change_threads(void)
{
	note(has_thread ? "thread ends" : "thread");
	thread_ends = has_thread;
	if (has_thread)
		check(pthread_join(thread, NULL), "pthread_join");
	else
		check(pthread_create(&thread, NULL, idle, NULL), "pthread_create");
	has_thread = !has_thread;
}

/* ---- Regions ---- */

static struct region *some_region(bool is_used)
{
	int start = below(REGIONS);

	for (int i = 0; i < REGIONS; i++)
		if (!regions[(start + i) % REGIONS].mr == !is_used)
			return &regions[(start + i) % REGIONS];
	return NULL;
}

static void register_pages(void)
{
	static const int RIGHTS[] = {
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE,
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE,
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ,
		IBV_ACCESS_LOCAL_WRITE,
	};
	bool before[SPAN_MAX], after[SPAN_MAX];
	struct region *region = some_region(false);
	int slot, count = some_pages(&slot, SPAN_MAX);
	size_t end;

	if (!region || !count)
		return;
	region->first = below(4) ? 0 : below(PAGE);
	end = below(4) ? 0 : below(PAGE);
	region->length = (size_t)count * PAGE - region->first - end;
	if (count == 1 && region->first + end >= PAGE)
		return;
	region->access = RIGHTS[below(8) ? below(3) : 3];
	region->count = count;
	region->address = (uintptr_t)address_of(slot) + region->first;
	look_for_segments(slot, count, before);
	region->mr = check_pointer(ibv_reg_mr(pd, (void *)region->address, region->length,
					      region->access), "ibv_reg_mr");
	look_for_segments(slot, count, after);
	note("register %d: %d+%d access %x from %zu", (int)(region - regions), slot, count,
	     region->access, region->first);
	for (int i = 0; i < count; i++) {
		struct object *object = slots[slot + i];

		object->odd &= before[i];
		region->pages[i] = (struct held){ object, slot + i, after[i] && !object->odd };
		object->users++;
		pages_registered++;
		pages_shared += region->pages[i].shared;
	}
}

static void end_burst(void)
{
	if (!burst)
		return;
	note("burst ends; ");
	tell_peer(BURST_END, 0, 0, 0);
	await_peer();
	burst = NULL;
}

static void deregister(struct region *region)
{
	if (!region)
		return;
	if (region == burst)
		end_burst();
	note("deregister %d", (int)(region - regions));
	check(ibv_dereg_mr(region->mr), "ibv_dereg_mr");
	region->mr = NULL;
	for (int i = 0; i < region->count; i++)
		region->pages[i].object->users--;
}

/* Returns whether an access to a part of a region reaches the pages that were registered. */
static bool is_sound(const struct region *region, size_t offset, size_t length)
{
	size_t at = region->first + offset;

	for (size_t page = at / PAGE; page <= (at + length - 1) / PAGE; page++) {
		const struct held *held = &region->pages[page];

		if (!held->shared && slots[held->slot] != held->object)
			return false;
	}
	return true;
}

static void copy(const struct region *region, size_t offset, size_t length, unsigned char *bytes,
		 bool to_region)
{
	for (size_t i = 0; i < length; i++) {
		size_t at = region->first + offset + i;
		unsigned char *byte = &region->pages[at / PAGE].object->bytes[at % PAGE];

		*(to_region ? byte : &bytes[i]) = *(to_region ? &bytes[i] : byte);
	}
}

static bool meets_burst(const struct region *region)
{
	for (int i = 0; i < region->count; i++)
		if (is_in_burst(region->pages[i].object))
			return true;
	return false;
}

static void use(struct region *region, bool by_peer)
{
	static unsigned char expected[BUFFER];
	bool writes = below(2);
	int needs = writes ? (by_peer ? IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_LOCAL_WRITE) :
			     (by_peer ? IBV_ACCESS_REMOTE_READ : 0);
	size_t offset, length;
	struct ibv_sge sge;

	if (!region || (region->access & needs) != needs || meets_burst(region))
		return;
	offset = below(region->length);
	length = below(3) ? 1 + below(64) : region->length;
	if (length > region->length - offset)
		length = region->length - offset;
	if (!is_sound(region, offset, length))
		return;
	/* A burst uses the buffer until it ends. */
	end_burst();
	note("%s %s %d at %zu, %zu bytes", by_peer ? "peer" : "own", writes ? "writes" : "reads",
	     (int)(region - regions), offset, length);
	if (writes)
		scramble(buffer, length);
	else
		memset(buffer, 0xee, length);
	if (by_peer) {
		tell_peer(writes ? WRITE : READ, region->address + offset, region->mr->rkey, length);
		await_peer();
	} else {
		sge = (struct ibv_sge){ region->address + offset, length, region->mr->lkey };
		post(id->qp, writes ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, sge,
		     peer_buffer.address, peer_buffer.key);
	}
	if (writes) {
		copy(region, offset, length, buffer, true);
		return;
	}
	copy(region, offset, length, expected, false);
	if (memcmp(buffer, expected, length))
		wrong("a region does not hold what its pages hold");
	checks++;
}

/* Makes the peer write and read a part of a region again and again while the program goes on. */
static void start_burst(struct region *region)
{
	size_t length;

	if (!region || burst || region->length < BURST ||
	    !(region->access & IBV_ACCESS_REMOTE_WRITE))
		return;
	for (int i = 0; i < region->count; i++)
		if (!region->pages[i].shared)
			return;
	burst_offset = below(region->length - BURST + 1);
	length = BURST;
	note("burst in %d at %zu", (int)(region - regions), burst_offset);
	scramble(buffer, length);
	copy(region, burst_offset, length, buffer, true);
	tell_peer(WRITE, region->address + burst_offset, region->mr->rkey, length);
	await_peer();
	tell_peer(BURST_START, region->address + burst_offset, region->mr->rkey, length);
	burst = region;
}

static void do_something(void)
{
	switch (below(24)) {
	case 0: case 1: return map_pages();
	case 2: return unmap_pages();
	case 3: return move_pages();
	case 4: return grow_pages();
	case 5: return empty_pages();
	case 6: return change_heap();
	case 7: case 8: return write_memory();
	case 9: case 10: case 11: case 12: return register_pages();
	case 13: case 14: return deregister(some_region(true));
	case 15: return start_burst(some_region(true));
	case 16: return below(8) ? (void)0 : fork_child();
	case 17: return below(has_thread ? 2 : 12) ? (void)0 : change_threads();
	case 18: case 19: return use(some_region(true), false);
	default: return use(some_region(true), true);
	}
}

static int run(const char *program, uint64_t seed, long steps, const char *port)
{
	random_state = seed * 0x9e3779b97f4a7c15 + 1;
	/* Makes the C library's heap so large that it does not grow later. */
	mallopt(M_TOP_PAD, 32 << 20);
	mallopt(M_MMAP_THRESHOLD, 8 << 20);
	free(check_pointer(malloc(4 << 20), "malloc"));
	accept_peer(program, port);
	arena = mmap(NULL, (size_t)MAPPED * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (arena == MAP_FAILED)
		die("mmap: %s", strerror(errno));
	if (sbrk(-(uintptr_t)sbrk(0) & (PAGE - 1)) == (void *)-1)
		die("sbrk: %s", strerror(errno));
	heap = sbrk(0);
	for (step = 0; step < steps; step++) {
		history[step % LOG_LINES][0] = 0;
		do_something();
		check_memory();
	}
	step--;
	end_burst();
	if (has_thread)
		change_threads();
	for (struct region *region = regions; region < regions + REGIONS; region++)
		if (region->mr)
			deregister(region);
	check_memory();
	tell_peer(STOP, 0, 0, 0);
	printf("pages registered: %ld shared: %ld\n", pages_registered, pages_shared);
	printf("checks: %ld\n", checks);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 5 && !strcmp(argv[1], "peer"))
		return peer(argv[2], argv[3], argv[4]);
	if (argc == 5 && !strcmp(argv[1], "run"))
		return run(argv[0], strtoull(argv[2], NULL, 0), atol(argv[3]), argv[4]);
	die("usage: see the head of regions.c");
}
