package relay

import (
	"os"
	"syscall"
)

// poller is an epoll set and the goroutine that waits on it. Copies share both.
type poller struct {
	file *os.File // the set itself, known to the runtime's poller
	raw  syscall.RawConn
	done chan struct{}
}

// open creates the set and starts the goroutine on the first call.
func (p *poller) open(gone func(id int64)) bool {
	if p.file != nil {
		return true
	}
	fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return false
	}
	if err := syscall.SetNonblock(fd, true); err != nil { // so that os.NewFile hands it to the runtime's poller
		_ = syscall.Close(fd)
		return false
	}
	file := os.NewFile(uintptr(fd), "epoll")
	raw, err := file.SyscallConn()
	if err != nil {
		_ = file.Close()
		return false
	}
	p.file, p.raw, p.done = file, raw, make(chan struct{})
	go p.run(p.raw, p.done, gone)
	return true
}

func (*poller) run(raw syscall.RawConn, done chan<- struct{}, gone func(id int64)) {
	defer close(done)
	var events [64]syscall.EpollEvent
	for {
		n := 0
		err := raw.Read(func(fd uintptr) bool {
			for {
				var err error
				if n, err = syscall.EpollWait(int(fd), events[:], 0); err != syscall.EINTR {
					return n > 0
				}
			}
		})
		if err != nil {
			return // closed
		}
		for _, ev := range events[:n] {
			gone(int64(ev.Pad)<<32 | int64(uint32(ev.Fd)))
		}
	}
}

// add watches a socket for its peer closing. The kernel drops the socket from the set when it is closed; a late event
// carries an id that is not used again.
func (p poller) add(sock syscall.RawConn, id int64) bool {
	return p.control(sock, syscall.EPOLL_CTL_ADD, &syscall.EpollEvent{
		Events: syscall.EPOLLRDHUP | syscall.EPOLLONESHOT, Fd: int32(id), Pad: int32(id >> 32),
	})
}

func (p poller) remove(sock syscall.RawConn) {
	p.control(sock, syscall.EPOLL_CTL_DEL, nil)
}

// control changes the set while both descriptors are kept open.
func (p poller) control(sock syscall.RawConn, op int, ev *syscall.EpollEvent) bool {
	ok := false
	_ = p.raw.Control(func(set uintptr) {
		_ = sock.Control(func(fd uintptr) {
			ok = syscall.EpollCtl(int(set), op, int(fd), ev) == nil
		})
	})
	return ok
}

func (p poller) close() {
	if p.file != nil {
		_ = p.file.Close()
		<-p.done
	}
}
