// Package ui is the gateway's page: its files, the sessions that it keeps in a cookie, what it shows of the pool, and
// the one producer that all viewers share.
//
// The page acts through the same routes as every other client. What it shows comes from the gateway's mirror: viewers
// cost no Redis command, wake nothing and use no model.
package ui
