package app

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"math/big"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// Limits of a connection to the embedded Redis before its password.
const (
	authTime     = 10 * time.Second
	authConns    = 128
	authCommands = 16
	authArgs     = 8
	authArg      = 512 // bytes
)

// embeddedRedis is the Redis of gateway run. miniredis allocates what a command announces before it asks for the password,
// so clients first reach a listener that reads short commands only; a connection with the right password is passed on.
// miniredis itself takes only TLS connections with a certificate that never leaves this process.
type embeddedRedis struct {
	db       *miniredis.Miniredis
	listener net.Listener
	password string
	inner    *tls.Config
	waiting  chan struct{} // capacity authConns: connections without the password

	work  sync.WaitGroup
	mu    sync.Mutex
	conns map[net.Conn]struct{} // nil once closed
}

// startRedis serves at addr until Close.
func startRedis(addr, password string) (*embeddedRedis, error) {
	outer, inner, err := privateTLS()
	if err != nil {
		return nil, err
	}
	e := &embeddedRedis{
		db: miniredis.NewMiniRedis(), password: password, inner: inner, waiting: make(chan struct{}, authConns), conns: map[net.Conn]struct{}{},
	}
	e.db.ClockTTL(true)
	e.db.RequireAuth(password)
	if e.listener, err = net.Listen("tcp", addr); err != nil {
		return nil, err
	}
	if err := e.db.StartTLS(outer); err != nil {
		_ = e.listener.Close()
		return nil, err
	}
	e.work.Go(e.accept)
	return e, nil
}

// Addr is where clients reach it.
func (e *embeddedRedis) Addr() string { return e.listener.Addr().String() }

// Close ends every connection.
func (e *embeddedRedis) Close() {
	_ = e.listener.Close()
	e.mu.Lock()
	for c := range e.conns {
		_ = c.Close()
	}
	e.conns = nil
	e.mu.Unlock()
	e.work.Wait()
	e.db.Close()
}

func (e *embeddedRedis) accept() {
	for {
		c, err := e.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // out of descriptors
			continue
		}
		select {
		case e.waiting <- struct{}{}:
			e.work.Go(func() { e.serve(c) })
		default:
			_ = c.Close()
		}
	}
}

// keep makes Close end c as well; false if Redis is closed already.
func (e *embeddedRedis) keep(c net.Conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.conns == nil {
		return false
	}
	e.conns[c] = struct{}{}
	return true
}

func (e *embeddedRedis) drop(c net.Conn) {
	e.mu.Lock()
	delete(e.conns, c)
	e.mu.Unlock()
	_ = c.Close()
}

// serve waits for the password and relays the connection from then on.
func (e *embeddedRedis) serve(c net.Conn) {
	defer e.drop(c)
	ok := e.keep(c) && c.SetDeadline(time.Now().Add(authTime)) == nil
	r := bufio.NewReader(c)
	var first []byte
	if ok {
		first, ok = e.login(c, r)
	}
	<-e.waiting
	if !ok || c.SetDeadline(time.Time{}) != nil {
		return
	}
	up, err := tls.DialWithDialer(&net.Dialer{Timeout: authTime}, "tcp", e.db.Addr(), e.inner)
	if err != nil {
		return
	}
	defer e.drop(up)
	if !e.keep(up) {
		return
	}
	if _, err := up.Write(first); err != nil {
		return
	}
	e.work.Go(func() {
		_, _ = io.Copy(up, r)
		_ = up.CloseWrite() // what was asked is still answered
	})
	_, _ = io.Copy(c, up)
}

// login answers commands until one has the right password, and returns that one as it was sent.
func (e *embeddedRedis) login(w io.Writer, r *bufio.Reader) (command []byte, ok bool) {
	for range authCommands {
		args, raw, err := readCommand(r)
		if err != nil {
			_, _ = io.WriteString(w, "-ERR Protocol error\r\n")
			return nil, false
		}
		given, tried := passwordOf(args)
		reply := "-NOAUTH Authentication required.\r\n"
		switch {
		case tried && subtle.ConstantTimeCompare([]byte(given), []byte(e.password)) == 1:
			return raw, true
		case tried:
			reply = "-WRONGPASS invalid username-password pair or user is disabled.\r\n"
		case len(args) > 0 && strings.EqualFold(args[0], "QUIT"):
			_, _ = io.WriteString(w, "+OK\r\n")
			return nil, false
		}
		if _, err := io.WriteString(w, reply); err != nil {
			return nil, false
		}
	}
	return nil, false
}

// passwordOf finds the password in AUTH [user] password and HELLO version AUTH user password.
func passwordOf(args []string) (password string, ok bool) {
	switch {
	case (len(args) == 2 || len(args) == 3) && strings.EqualFold(args[0], "AUTH"):
		return args[len(args)-1], true
	case len(args) >= 5 && strings.EqualFold(args[0], "HELLO") && strings.EqualFold(args[2], "AUTH"):
		return args[4], true
	}
	return "", false
}

var errCommand = errors.New("no short command of the Redis protocol")

// readCommand reads one short command: an array of bulk strings, the only form that miniredis takes.
// Source: https://redis.io/docs/latest/develop/reference/protocol-spec/
func readCommand(r *bufio.Reader) (args []string, raw []byte, err error) {
	line, err := readLine(r)
	if err != nil {
		return nil, nil, err
	}
	raw = append(raw, line...)
	count, isArray := bytes.CutPrefix(line, []byte("*"))
	n, err := strconv.Atoi(string(bytes.TrimSpace(count)))
	if !isArray || err != nil || n < 0 || n > authArgs {
		return nil, nil, errCommand
	}
	for range n {
		if line, err = readLine(r); err != nil {
			return nil, nil, err
		}
		raw = append(raw, line...)
		size, isBulk := bytes.CutPrefix(line, []byte("$"))
		length, err := strconv.Atoi(string(bytes.TrimSpace(size)))
		if !isBulk || err != nil || length < 0 || length > authArg {
			return nil, nil, errCommand
		}
		arg := make([]byte, length+len("\r\n"))
		if _, err := io.ReadFull(r, arg); err != nil {
			return nil, nil, err
		}
		raw = append(raw, arg...)
		args = append(args, string(arg[:length]))
	}
	return args, raw, nil
}

// readLine reads a line of at most authArg bytes with its end.
func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	if err == nil && len(line) > authArg {
		err = errCommand
	}
	return bytes.Clone(line), err
}

// privateTLS makes both sides of TLS connections that only this process can open: each side demands the one certificate,
// whose key is kept nowhere else.
func privateTLS() (server, client *tls.Config, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	const name = "embedded-redis"
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().AddDate(-1, 0, 0), NotAfter: time.Now().AddDate(100, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, err
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	certificates := []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}}
	server = &tls.Config{Certificates: certificates, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13}
	client = &tls.Config{Certificates: certificates, RootCAs: pool, ServerName: name, MinVersion: tls.VersionTLS13}
	return server, client, nil
}
