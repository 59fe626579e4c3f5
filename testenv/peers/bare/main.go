// Command bare has the light programs of the comparison with peers: an engine that does nothing but answer, and two
// relays that do nothing but relay.
//
//	bare engine [--host ADDRESS] --port PORT
//	bare relay PORT UPSTREAM      moves bytes, one upstream connection for each client's
//	bare fasthttp PORT UPSTREAM   fasthttp's server and client
//
// All listen on loopback, and end with the process that started them.
package main

import (
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/testenv/peers"
)

func main() {
	parent := os.Getppid()
	go func() {
		for os.Getppid() == parent {
			time.Sleep(time.Second)
		}
		os.Exit(1)
	}()
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bare:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) > 0 && args[0] == "engine":
		return serve(flagOf(args, "--port"), answer)
	case len(args) == 3 && args[0] == "relay":
		return serve(args[1], func(c net.Conn) { relay(c, args[2]) })
	case len(args) == 3 && args[0] == "fasthttp":
		upstream := &fasthttp.HostClient{Addr: args[2], MaxConns: 1 << 20, StreamResponseBody: true}
		server := &fasthttp.Server{
			MaxRequestBodySize: 1 << 30, Concurrency: 1 << 20, NoDefaultServerHeader: true,
			Handler: func(ctx *fasthttp.RequestCtx) {
				if err := upstream.Do(&ctx.Request, &ctx.Response); err != nil {
					ctx.Error(err.Error(), fasthttp.StatusBadGateway)
				}
			},
		}
		return server.ListenAndServe("127.0.0.1:" + args[1])
	}
	return fmt.Errorf("want engine, relay or fasthttp, not %q", args)
}

// flagOf is the argument behind a flag. An engine is given flags of its recipe that it has no use for.
func flagOf(args []string, name string) string {
	if i := slices.Index(args, name); i >= 0 && i+1 < len(args) {
		return args[i+1]
	}
	return "0"
}

func serve(port string, each func(net.Conn)) error {
	ln, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		return err
	}
	for {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			each(c)
		}()
	}
}

// relay serves one client until either side ends.
func relay(client net.Conn, addr string) {
	upstream, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer upstream.Close()
	buf := make([]byte, 64<<10)
	for move(upstream, client, buf) && move(client, upstream, buf) {
	}
}

// move passes one message on as it comes and reports whether it came to its end.
func move(to, from net.Conn, buf []byte) bool {
	head, whole := 0, 0
	for n, passed := 0, 0; n < len(buf); {
		m, err := from.Read(buf[n:])
		if n += m; err != nil {
			return false
		}
		if head > 0 && peers.LastChunk(buf[:n]) {
			whole = n
		}
		if head == 0 {
			if head, whole = peers.MessageLength(buf[:n]); head == 0 {
				continue
			}
		}
		if _, err := to.Write(buf[passed:n]); err != nil {
			return false
		}
		passed = n
		if whole > 0 {
			whole -= n
			break
		}
	}
	for whole > 0 {
		n, err := from.Read(buf)
		if err != nil {
			return false
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return false
		}
		whole -= n
	}
	return true
}
