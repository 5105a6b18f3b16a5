// An echo server and its client: go's own network stack, which makes its system calls itself.
//
//	echo serve PORT CONNECTIONS
//	echo connect PORT BYTES
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strconv"
	"sync"
)

// The byte at a place of the stream. 65,521 is prime: no buffer's size is a multiple of it.
func pattern(place int) byte {
	place %= 65521
	return byte(place ^ place>>8)
}

func serve(port string, connections int) {
	listener, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		log.Fatal(err)
	}
	var clients sync.WaitGroup
	for ; connections > 0; connections-- {
		client, err := listener.Accept()
		if err != nil {
			log.Fatal(err)
		}
		clients.Add(1)
		go func() {
			defer clients.Done()
			defer client.Close()
			buffer := make([]byte, 50000)
			for {
				count, err := client.Read(buffer)
				if err == io.EOF {
					return
				}
				if err != nil {
					log.Fatal(err)
				}
				if _, err := client.Write(buffer[:count]); err != nil {
					log.Fatal(err)
				}
			}
		}()
	}
	clients.Wait()
}

func connect(port string, bytes int) {
	server, err := net.Dial("tcp", "127.0.0.1:"+port)
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		for sent, chunk := 0, 1; sent < bytes; chunk = chunk*3%70001 + 1 {
			if chunk > bytes-sent {
				chunk = bytes - sent
			}
			buffer := make([]byte, chunk)
			for i := range buffer {
				buffer[i] = pattern(sent + i)
			}
			if _, err := server.Write(buffer); err != nil {
				log.Fatal(err)
			}
			sent += chunk
		}
		if err := server.(*net.TCPConn).CloseWrite(); err != nil {
			log.Fatal(err)
		}
	}()
	echo, err := io.ReadAll(server)
	if err != nil {
		log.Fatal(err)
	}
	if len(echo) != bytes {
		log.Fatalf("%d bytes instead of %d", len(echo), bytes)
	}
	for i := range echo {
		if echo[i] != pattern(i) {
			log.Fatalf("byte %d differs", i)
		}
	}
	fmt.Println("echoed", bytes)
}

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: echo serve PORT CONNECTIONS | echo connect PORT BYTES")
	}
	number, err := strconv.Atoi(os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	if os.Args[1] == "serve" {
		serve(os.Args[2], number)
	} else {
		connect(os.Args[2], number)
	}
}
