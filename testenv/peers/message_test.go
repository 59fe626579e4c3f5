package peers

import "testing"

func TestMessageLength(t *testing.T) {
	const chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	for _, c := range []struct {
		text        string
		head, whole int
	}{
		{"HTTP/1.1 200 OK\r\nContent-Le", 0, 0},
		{"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 27, 27},
		{"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab", 38, 43},
		{chunked, 47, 0},
		{chunked + "2\r\nab\r\n", 47, 0},
		{chunked + "2\r\nab\r\n0\r\n\r\n", 47, 59},
	} {
		if head, whole := MessageLength([]byte(c.text)); head != c.head || whole != c.whole {
			t.Errorf("%q: %d, %d; want %d, %d", c.text, head, whole, c.head, c.whole)
		}
	}
}
