/*
 * A client of the tuple space that `weft tuples serve` holds.
 *
 *     #include <weft_tuples.h>                cc program.c $(pkg-config --cflags --libs weft-tuples)
 *
 *     struct weft_tuples *client;
 *     int status = weft_tuples_connect("127.0.0.1:7417", 10000, &client);
 *     if (status != WEFT_TUPLES_OK)
 *         errx(1, "%s", weft_tuples_text(status));
 *     struct weft_tuples_bytes jobs = {"jobs", 4};
 *     struct weft_tuples_list *list;
 *     status = weft_tuples_take(client, &jobs, 1, 1, 0, WEFT_TUPLES_FOR_EVER, &list);
 *     if (status == WEFT_TUPLES_OK) {
 *         fwrite(list->items[0].fields[0].data, 1, list->items[0].fields[0].len, stdout);
 *         weft_tuples_free_list(list);
 *     }
 *     weft_tuples_close(client);
 *
 * Every call that returns an int returns an enum weft_tuples_status. A call writes its results only
 * if it returns WEFT_TUPLES_OK. Bytes are of any kind and do not end with 0. Pointers to no bytes,
 * or to none of something, may be NULL.
 *
 * Ownership: the library copies what a call is given before the call returns, and keeps none of it.
 * A list or the elements that a call returns belong to the program, with all that they point to,
 * until it frees them by the function for it, from any thread; they outlive the client.
 *
 * Threads: all functions may be called by any thread, and threads may share a client. It does one
 * call after the other, so that a call waits while another one of the same client does: a thread
 * that waits for tuples wants a client of its own. weft_tuples_close must be the last call of a
 * client, after all others have returned. After a fork only one of the processes may use a client.
 *
 * If the connection is lost, a call connects again and repeats its operation, which takes effect
 * once.
 */
#ifndef WEFT_TUPLES_H
#define WEFT_TUPLES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum weft_tuples_status {
    WEFT_TUPLES_OK = 0,
    /* The server refuses, and nothing has changed but where it says so: */
    WEFT_TUPLES_LIMIT = 1,    /* a name, key, tuple or number is beyond the limits */
    WEFT_TUPLES_EXISTS = 2,   /* the element exists with other criteria */
    WEFT_TUPLES_COUNT = 3,    /* the criteria never allow that many tuples */
    WEFT_TUPLES_ORDER = 4,    /* the order does not allow this key, time stamp, end or selection */
    WEFT_TUPLES_STAMP = 5,    /* the time stamp does not follow all before */
    WEFT_TUPLES_FULL = 6,     /* the element is full, and the call does not wait */
    WEFT_TUPLES_MEMORY = 7,   /* the server has no memory for it */
    WEFT_TUPLES_ANSWER = 8,   /* the answer would be too long */
    WEFT_TUPLES_BUSY = 9,     /* too many operations wait, or too many elements or clients exist */
    WEFT_TUPLES_DELETED = 10, /* the element was deleted while the put waited */
    WEFT_TUPLES_STALE = 11,   /* the server does not know the client any more: it may have done it */
    WEFT_TUPLES_WINDOW = 12,  /* too many answers are kept for the client */
    WEFT_TUPLES_LOG = 13,     /* the server has stopped because of its log: it may have done it */
    WEFT_TUPLES_ELSEWHERE = 14, /* another server leads, or none does: it may have done it */
    WEFT_TUPLES_TOKEN = 15,     /* the server asks for a token; there is none or a wrong one */
    WEFT_TUPLES_RIGHTS = 16,    /* the user may not do this with the element */
    /* The call has failed: */
    WEFT_TUPLES_TIMEOUT = 32,  /* it could not be done in its time; nothing has changed */
    WEFT_TUPLES_LOST = 33,     /* no connection; a call on one that was lost may have been done */
    WEFT_TUPLES_PROTOCOL = 34, /* the peer is no server of a tuple space */
    WEFT_TUPLES_ARGUMENT = 35, /* a pointer is NULL, or a constant is unknown */
    WEFT_TUPLES_CREDENTIALS = 36 /* a file of credentials is not as it has to be */
};

/* How the tuples of an element are ordered. */
enum weft_tuples_order { WEFT_TUPLES_ARRIVAL = 0, WEFT_TUPLES_KEY = 1, WEFT_TUPLES_TIME = 2 };

/* When operations on an element wait; the number N belongs to all but the first. */
enum weft_tuples_sync {
    WEFT_TUPLES_UNBOUNDED = 0, /* a put never waits */
    WEFT_TUPLES_BOUND = 1,     /* a put waits until there are at most N tuples with it */
    WEFT_TUPLES_UNREAD = 2,    /* until at most N, with it, are neither taken nor observed */
    WEFT_TUPLES_EXACTLY = 3    /* tuples are taken in groups of N */
};

/* Flags. */
#define WEFT_TUPLES_FRONT 1u   /* put, transfer: before the first tuple */
#define WEFT_TUPLES_BACK 2u    /* take, transfer: the last tuples, the last one first */
#define WEFT_TUPLES_JUST 4u    /* take, observe: wait for just that many */
#define WEFT_TUPLES_APPEND 8u  /* put: refuse time stamps that do not follow all before */

/* As a time in milliseconds; 0 does not wait. */
#define WEFT_TUPLES_FOR_EVER ((int64_t)-1)

struct weft_tuples; /* a client */

struct weft_tuples_bytes {
    const void *data;
    size_t len;
};

/* What a client shows to servers, and expects of them. A member that is not needed is NULL. */
struct weft_tuples_credentials {
    const char *token_file; /* a file with the token of the servers, which only its owner may read */
    const char *ca_file;    /* PEM: the certificate of the server, or of the authority that issued it */
};

/* A time stamp. In a new tuple both are 0 if it has none. */
struct weft_tuples_stamp {
    uint64_t ms; /* since 1970 */
    uint64_t count;
};

/* A tuple to put. Its key is empty except in an element that is ordered by keys. */
struct weft_tuples_tuple {
    struct weft_tuples_bytes key;
    struct weft_tuples_stamp stamp;
    const struct weft_tuples_bytes *fields;
    size_t fields_count;
};

/* The place of a tuple in the order of its element. */
struct weft_tuples_rank {
    struct weft_tuples_bytes key;
    struct weft_tuples_stamp stamp;
    int64_t position;
};

/* A tuple of an answer. */
struct weft_tuples_item {
    size_t element; /* which of the elements that the call has named */
    struct weft_tuples_rank rank;
    const struct weft_tuples_bytes *fields;
    size_t fields_count;
};

struct weft_tuples_list {
    size_t count;
    const struct weft_tuples_item *items;
};

/* Where to observe: an element, and the rank behind which to read, or NULL for all of it. */
struct weft_tuples_place {
    struct weft_tuples_bytes element;
    const struct weft_tuples_rank *behind;
};

struct weft_tuples_element {
    struct weft_tuples_bytes name;
    int order; /* an enum weft_tuples_order */
    int sync;  /* an enum weft_tuples_sync */
    uint32_t n;
    uint64_t tuples;
    uint64_t waiting; /* operations that wait for it */
    struct weft_tuples_stamp last_stamp;
};

struct weft_tuples_elements {
    size_t count;
    const struct weft_tuples_element *elements;
};

/*
 * Connects to ADDRESS:PORT, by TLS to tls://ADDRESS:PORT, or to a Unix socket if another text has
 * a slash. After the loss of a connection the client tries for retry_ms to get another one.
 */
int weft_tuples_connect(const char *server, uint32_t retry_ms, struct weft_tuples **client);
/* The same for a server that asks for credentials, which may be NULL. Their files are read once. */
int weft_tuples_connect_with(const char *server, uint32_t retry_ms,
                             const struct weft_tuples_credentials *credentials,
                             struct weft_tuples **client);
/* Closes the connection, and lets the server forget the client, which may be NULL. */
void weft_tuples_close(struct weft_tuples *client);

/* Makes an element, unless there is one with the same criteria. */
int weft_tuples_create(struct weft_tuples *client, struct weft_tuples_bytes element, int order,
                       int sync, uint32_t n);
/* Puts tuples into an element, all at once. Waits for room. */
int weft_tuples_put(struct weft_tuples *client, struct weft_tuples_bytes element,
                    const struct weft_tuples_tuple *tuples, size_t count, unsigned flags,
                    int64_t timeout_ms);
/* Takes up to `most` tuples of the first of the elements that has some. Waits for them. */
int weft_tuples_take(struct weft_tuples *client, const struct weft_tuples_bytes *elements,
                     size_t elements_count, uint32_t most, unsigned flags, int64_t timeout_ms,
                     struct weft_tuples_list **list);
/* Reads up to `most` tuples of each element, and leaves them there. Waits for any. */
int weft_tuples_observe(struct weft_tuples *client, const struct weft_tuples_place *places,
                        size_t places_count, uint32_t most, unsigned flags, int64_t timeout_ms,
                        struct weft_tuples_list **list);
/* Takes a tuple from one element and puts it into another one, in one step. Waits for it. */
int weft_tuples_transfer(struct weft_tuples *client, struct weft_tuples_bytes from,
                         struct weft_tuples_bytes to, unsigned flags, int64_t timeout_ms,
                         struct weft_tuples_list **list);

/* Read up to `most` tuples; none of them waits. Negative places count from the end. */
int weft_tuples_read(struct weft_tuples *client, struct weft_tuples_bytes element, int64_t first,
                     int64_t last, uint32_t most, struct weft_tuples_list **list);
int weft_tuples_read_key(struct weft_tuples *client, struct weft_tuples_bytes element,
                         struct weft_tuples_bytes key, uint32_t most,
                         struct weft_tuples_list **list);
int weft_tuples_read_stamps(struct weft_tuples *client, struct weft_tuples_bytes element,
                            struct weft_tuples_stamp first, struct weft_tuples_stamp last,
                            uint32_t most, struct weft_tuples_list **list);

/* Lists the elements in the order of their names. */
int weft_tuples_elements(struct weft_tuples *client, struct weft_tuples_elements **elements);
/* Deletes an element with its tuples. `existed` may be NULL. */
int weft_tuples_delete(struct weft_tuples *client, struct weft_tuples_bytes element, int *existed);

/* Free what a call has returned, which may be NULL. */
void weft_tuples_free_list(struct weft_tuples_list *list);
void weft_tuples_free_elements(struct weft_tuples_elements *elements);

/* Describes a status. */
const char *weft_tuples_text(int status);

#ifdef __cplusplus
}
#endif

#endif
