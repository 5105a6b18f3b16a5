// A C library makes a connection; Go's own system calls use its numbers beside it, on many
// goroutines at once, whose stacks are small, while Go's signals come.
package main

/*
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

static int connect_pair(int pair[2])
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof address;
	int listener = socket(AF_INET, SOCK_STREAM, 0);

	pair[0] = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)&address, &length) ||
	    connect(pair[0], (struct sockaddr *)&address, sizeof address))
		return -1;
	pair[1] = accept(listener, 0, 0);
	return close(listener);
}

static long c_read(int fd, void *place, long length) { return read(fd, place, length); }
static long c_write(int fd, void *place, long length) { return write(fd, place, length); }
*/
import "C"

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"unsafe"
)

const rounds = 300

func check(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func move(fd int, bytes []byte, byHand, writes bool) {
	for len(bytes) > 0 {
		var count int
		var err error
		switch {
		case byHand && writes:
			count, err = syscall.Write(fd, bytes)
		case byHand:
			count, err = syscall.Read(fd, bytes)
		case writes:
			count = int(C.c_write(C.int(fd), unsafe.Pointer(&bytes[0]), C.long(len(bytes))))
		default:
			count = int(C.c_read(C.int(fd), unsafe.Pointer(&bytes[0]), C.long(len(bytes))))
		}
		if err == syscall.EINTR {
			continue
		}
		check(err)
		if count <= 0 {
			fmt.Println("count", count)
			os.Exit(1)
		}
		bytes = bytes[count:]
	}
}

func talk(group *sync.WaitGroup) {
	defer group.Done()
	var pair [2]C.int
	if C.connect_pair(&pair[0]) != 0 {
		fmt.Println("no pair")
		os.Exit(1)
	}
	one, other := int(pair[0]), int(pair[1])
	done := make(chan bool)
	go func() {
		bytes := make([]byte, 700)
		for round := 0; round < rounds; round++ {
			move(other, bytes, round%3 != 0, false)
			move(other, bytes, round%2 == 0, true)
		}
		done <- true
	}()
	for round := 0; round < rounds; round++ {
		bytes := make([]byte, 700)
		for at := range bytes {
			bytes[at] = byte(round + at)
		}
		move(one, bytes, round%2 != 0, true)
		move(one, bytes, round%3 == 0, false)
		for at := range bytes {
			if bytes[at] != byte(round+at) {
				fmt.Println("wrong byte")
				os.Exit(1)
			}
		}
		if round%50 == 0 {
			runtime.GC()
		}
	}
	<-done
	check(syscall.Close(one))
	if count, err := syscall.Read(other, make([]byte, 1)); count != 0 || err != nil {
		fmt.Println("no end", count, err)
		os.Exit(1)
	}
	check(syscall.Close(other))
}

func main() {
	var group sync.WaitGroup
	for count := 0; count < 4; count++ {
		group.Add(1)
		go talk(&group)
	}
	group.Wait()
	// Go makes its children by clone(2) with its own memory.
	said, err := exec.Command("echo", "child").Output()
	check(err)
	fmt.Print(string(said))
	fmt.Println("talked")
}
