package wol

import (
	"errors"
	"net"
)

// Packet returns the magic packet for a hardware address of 6 bytes: six FF bytes, the address 16 times, and the
// SecureOn password of 0, 4 or 6 bytes.
func Packet(mac net.HardwareAddr, password []byte) ([]byte, error) {
	if len(mac) != 6 {
		return nil, errors.New("a hardware address has 6 bytes")
	}
	if n := len(password); n != 0 && n != 4 && n != 6 {
		return nil, errors.New("a SecureOn password has 4 or 6 bytes")
	}
	p := make([]byte, 0, 6+16*6+len(password))
	for range 6 {
		p = append(p, 0xFF)
	}
	for range 16 {
		p = append(p, mac...)
	}
	return append(p, password...), nil
}
