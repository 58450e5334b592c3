// A broker on mochi-mqtt: it listens on the address that is named, says "ready", and ends when its input ends.
package main

import (
	"log/slog"
	"os"

	"github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/hooks/auth"
	"github.com/mochi-mqtt/server/v2/listeners"
)

func main() {
	server := mqtt.New(&mqtt.Options{Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	_ = server.AddHook(new(auth.AllowHook), nil)
	if err := server.AddListener(listeners.NewTCP(listeners.Config{ID: "tcp", Address: os.Args[1]})); err != nil {
		panic(err)
	}
	if err := server.Serve(); err != nil {
		panic(err)
	}
	os.Stdout.WriteString("ready\n")
	_, _ = os.Stdin.Read(make([]byte, 1))
	_ = server.Close()
}
