package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
)

const path = "/v1/chat/completions"

const (
	usage = `"usage":{"prompt_tokens":200,"completion_tokens":64,"total_tokens":264}`
	whole = `{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"one","choices":[{"index":0,` +
		`"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}],` + usage + `}`
	chunk = `data: {"id":"c-1","object":"chat.completion.chunk","created":1,"model":"one","choices":[{"index":0,`
	word  = chunk + `"delta":{"content":"word "},"finish_reason":null}]}` + "\n\n"
	last  = chunk + `"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	sums  = `data: {"id":"c-1","object":"chat.completion.chunk","created":1,"model":"one","choices":[],` + usage + "}\n\n"
	done  = "data: [DONE]\n\n"
)

// serveEngine answers every request with the same, or with a stream of max_tokens chunks, and seed seconds after the first.
func serveEngine(port string) error {
	server := &fasthttp.Server{MaxRequestBodySize: 1 << 30, Concurrency: 1 << 20, NoDefaultServerHeader: true}
	server.Handler = func(ctx *fasthttp.RequestCtx) {
		body := ctx.PostBody()
		var wants struct {
			Stream  bool
			Max     int `json:"max_tokens"`
			Seed    int
			Options struct {
				Usage bool `json:"include_usage"`
			} `json:"stream_options"`
		}
		if len(body) > 4<<10 || json.Unmarshal(body, &wants) != nil || !wants.Stream { // long ones want no stream
			ctx.SetContentType("application/json")
			ctx.SetBodyString(whole)
			return
		}
		ctx.SetContentType("text/event-stream")
		ctx.SetBodyStreamWriter(func(w *bufio.Writer) {
			for range wants.Max {
				_, _ = w.WriteString(word)
				if w.Flush() != nil {
					return
				}
				time.Sleep(time.Duration(wants.Seed) * time.Second)
			}
			_, _ = w.WriteString(last)
			if wants.Options.Usage {
				_, _ = w.WriteString(sums)
			}
			_, _ = w.WriteString(done)
		})
	}
	return server.ListenAndServe("127.0.0.1:" + port)
}

// serveRelay sends each request on and its response back.
func serveRelay(port, engine string) error {
	upstream := &fasthttp.HostClient{Addr: engine, MaxConns: 1 << 20, StreamResponseBody: true}
	server := &fasthttp.Server{
		MaxRequestBodySize: 1 << 30, Concurrency: 1 << 20, NoDefaultServerHeader: true,
		Handler: func(ctx *fasthttp.RequestCtx) {
			if err := upstream.Do(&ctx.Request, &ctx.Response); err != nil {
				ctx.Error(err.Error(), fasthttp.StatusBadGateway)
			}
		},
	}
	return server.ListenAndServe("127.0.0.1:" + port)
}

// drive keeps connections busy for a window, after a tenth of a second to warm up, and adds what it found.
func drive(c *contender, w work, window time.Duration, f *figures) error {
	client := &fasthttp.HostClient{Addr: c.addr, MaxConns: w.conns}
	defer client.CloseIdleConnections()
	var measuring, over atomic.Bool
	var mu sync.Mutex
	var took []float64
	var failed error
	var all sync.WaitGroup
	for range w.conns {
		all.Go(func() {
			var mine []float64
			req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
			req.Header.SetMethod("POST")
			req.Header.SetContentType("application/json")
			req.SetRequestURI("http://" + c.addr + path)
			req.SetBodyString(w.body)
			var err error
			for err == nil && !over.Load() {
				began := time.Now()
				if err = client.Do(req, resp); err == nil && (resp.StatusCode() != 200 ||
					resp.Header.ContentLength() < 0 && !bytes.HasSuffix(resp.Body(), []byte(done))) {
					err = fmt.Errorf("%d %.300q", resp.StatusCode(), resp.Body())
				}
				if measuring.Load() && !over.Load() {
					mine = append(mine, float64(time.Since(began))/float64(time.Microsecond))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, mine...)
			if err != nil {
				failed = err
			}
		})
	}
	time.Sleep(100 * time.Millisecond)
	cpu, began := cpuTime(c.pids), time.Now()
	measuring.Store(true)
	time.Sleep(window)
	over.Store(true)
	elapsed := time.Since(began)
	cpu = cpuTime(c.pids) - cpu
	all.Wait()
	if len(took) == 0 && failed == nil {
		failed = fmt.Errorf("no answer in %v", window)
	}
	if failed != nil {
		return failed
	}
	f.rate = append(f.rate, float64(len(took))/elapsed.Seconds())
	f.cpu = append(f.cpu, float64(cpu)/float64(time.Microsecond)/float64(len(took)))
	f.p50 = append(f.p50, median(took))
	return nil
}

// hold opens streams that send one event and then nothing, and returns their connections once each has had that.
func hold(addr string, streams int) (held []net.Conn, err error) {
	body := question(100, `"stream":true,"max_tokens":2,"seed":3600,`)
	request := fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		path, addr, len(body), body)
	for range streams {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return held, err
		}
		held = append(held, conn)
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		if _, err := conn.Write(request); err != nil {
			return held, err
		}
		for r := bufio.NewReader(conn); ; {
			line, err := r.ReadString('\n')
			if err != nil {
				return held, err
			}
			if bytes.Contains([]byte(line), []byte(`"content":"word "`)) {
				break
			}
		}
	}
	return held, nil
}
